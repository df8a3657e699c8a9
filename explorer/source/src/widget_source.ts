import { readSafetensors } from "./safetensors";
import { QueryError, type Needs, type Params, type QueryOptions, type Source } from "./source";

/** What a notebook gives a widget: values that both sides see, and messages. */
export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(event: string, callback: (...args: never[]) => void): void;
  off(event: string, callback: (...args: never[]) => void): void;
}

interface Message {
  id: number;
  kind?: string;
  error?: string;
  needs?: Needs;
  progress?: [number, number | null];
}

interface Waiting {
  done: (value: unknown) => void;
  failed: (error: Error) => void;
  progress?: QueryOptions["progress"];
}

/** The queries of the Python process that shows a widget, asked by messages. */
export class WidgetSource implements Source {
  private last = 0;
  private waiting = new Map<number, Waiting>();

  constructor(private readonly model: Model) {
    model.on("msg:custom", this.receive);
  }

  close(): void {
    this.model.off("msg:custom", this.receive);
  }

  selected(rows: number[] | null): void {
    this.model.set("rows", rows);
    this.model.save_changes();
  }

  query<T>(name: string, params: Params, { signal, progress }: QueryOptions = {}): Promise<T> {
    const id = ++this.last;
    return new Promise<T>((done, failed) => {
      this.waiting.set(id, { done: done as Waiting["done"], failed, progress });
      signal?.addEventListener("abort", () => this.waiting.delete(id) && failed(signal.reason as Error));
      const given = Object.entries(params).filter(([, value]) => value !== undefined);
      this.model.send({ id, name, params: Object.fromEntries(given.map(([key, value]) => [key, String(value)])) });
    });
  }

  private receive = ({ id, kind, error, needs, progress }: Message, buffers: DataView[]): void => {
    const asked = this.waiting.get(id);
    if (!asked) return; // another view of the widget asked, or nobody waits any more
    if (progress) return asked.progress?.(...progress);
    this.waiting.delete(id);
    if (error !== undefined) return asked.failed(new QueryError(error, needs));
    const { buffer, byteOffset, byteLength } = buffers[0]!;
    const bytes = (buffer as ArrayBuffer).slice(byteOffset, byteOffset + byteLength);
    asked.done(kind === "application/json" ? JSON.parse(new TextDecoder().decode(bytes)) : readSafetensors(bytes));
  };
}
