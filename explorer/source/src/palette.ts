/** Okabe and Ito's colours, told apart by readers with any kind of colour vision; the page's variables --c0 to --c7. */
export const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#888888"] as const;

/** The colour of a category: a CSS variable, which differs between light and dark. */
export const color = (index: number): string => (index < 0 ? "var(--muted)" : `var(--c${index % PALETTE.length})`);
