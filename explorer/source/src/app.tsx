import { createContext, type ComponentType } from "preact";
import { useContext } from "preact/hooks";
import type { StoreInfo } from "./answers";
import type { Source } from "./source";
import type { Changes, State, Values } from "./state";

/** What every view is given. */
export interface App {
  source: Source;
  stores: StoreInfo[];
  state: State;
  views: View[];
  /** Asks everything again, since the answers are others now. */
  changed: () => void;
}

export const AppContext = createContext<App | null>(null);

export interface View {
  /** Its name in the address. */
  name: string;
  title: string;
  component: ComponentType;
}

export interface Here extends App {
  values: Values;
  /** The chosen store and its number. */
  store: StoreInfo;
  index: number;
  /** The chosen layer: that of the address, else the middle one. */
  layer: number;
  go: State["go"];
  href: (changes: Changes) => string;
}

/** The source, the state and the store that a view reads. */
export function useApp(): Here {
  const app = useContext(AppContext)!;
  const values = app.state.values.value;
  const index = Math.min(Number(values.store) || 0, app.stores.length - 1);
  const store = app.stores[index]!;
  const asked = Number(values.layer ?? NaN);
  const layer = store.layers.includes(asked) ? asked : store.layers[store.layers.length >> 1]!;
  return { ...app, values, store, index, layer, go: app.state.go, href: app.state.href };
}
