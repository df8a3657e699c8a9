import { defineConfig } from "vite";

// File names carry no hashes, so that the committed bundle can be rebuilt and compared.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../embstore/explorer/page",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    minify: false, // the bundle is committed: its changes can be read and merged
    rollupOptions: {
      output: { entryFileNames: "explorer.js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]" },
    },
  },
});
