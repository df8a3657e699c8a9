import { mount } from "./shell";
import { ServerSource } from "./server_source";
import { urlState } from "./state";
import { StaticSource } from "./static_source";
import { startTheme } from "./theme";
import "./style.css";

startTheme();
const app = document.getElementById("app")!;
const manifest = document.querySelector<HTMLMetaElement>('meta[name="embstore-static"]')?.content;
if (manifest) {
  StaticSource.open(manifest).then(
    (source) => {
      Object.assign(window, { embstore: source }); // await embstore.query("complete", { prefix: "b" }) in the console
      mount(app, source, urlState());
    },
    (error: Error) => app.append(`The files of this page cannot be read: ${error.message}`),
  );
} else mount(app, new ServerSource(new URLSearchParams(location.search).get("token")), urlState());
