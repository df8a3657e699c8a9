import { start } from "./explorer";
import "./style.css";

start();
