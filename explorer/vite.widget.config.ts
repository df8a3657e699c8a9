import { defineConfig } from "vite";

// The widget of notebooks: one module without imports, next to the page.
export default defineConfig({
  build: {
    outDir: "../embstore/explorer/page",
    emptyOutDir: false,
    copyPublicDir: false,
    target: "es2022",
    minify: false,
    lib: { entry: "src/widget.ts", formats: ["es"], fileName: () => "widget.js" },
  },
});
