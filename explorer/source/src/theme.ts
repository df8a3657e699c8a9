import { signal } from "@preact/signals";

type Theme = "system" | "light" | "dark";

const stored = (): Theme => {
  try {
    const value = localStorage.getItem("embstore-theme");
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // storage may be forbidden
  }
};

export const theme = signal<Theme>("system");
const system = matchMedia("(prefers-color-scheme: dark)");
/** Whether the page is dark now: pictures drawn on a canvas read it. */
export const dark = signal(system.matches);

export function setTheme(value: Theme): void {
  theme.value = value;
  dark.value = value === "dark" || (value === "system" && system.matches);
  document.documentElement.dataset.theme = value;
  try {
    localStorage.setItem("embstore-theme", value);
  } catch {
    // storage may be forbidden: the choice lasts as long as the page
  }
}

export function startTheme(): void {
  setTheme(stored());
  system.addEventListener("change", () => setTheme(theme.value));
}
