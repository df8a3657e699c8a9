import { mount } from "./shell";
import { ServerSource } from "./server_source";
import { urlState } from "./state";
import { startTheme } from "./theme";
import "./style.css";

startTheme();
const token = new URLSearchParams(location.search).get("token");
mount(document.getElementById("app")!, new ServerSource(token), urlState());
