import { defineConfig } from "vite";

// All code is in explorer.js, one module without imports: a notebook is given its text, and page.js starts it as a page.
// File names carry no hashes, so that the committed bundle can be rebuilt and compared.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../page",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"], // the first with light-dark()
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      input: { page: "index.html", explorer: "src/explorer.ts" },
      preserveEntrySignatures: "allow-extension",
      output: { entryFileNames: "[name].js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]" },
    },
  },
});
