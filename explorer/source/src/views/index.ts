import type { View } from "../app";
import { compare } from "./compare";
import { layers } from "./layers";
import { map } from "./map";
import { neighbors } from "./neighbors";
import { sentence } from "./sentence";
import { word } from "./word";

/** The views, in the order of the navigation: a new view is one file and one name here. */
export const VIEWS: View[] = [word, map, neighbors, layers, sentence, compare];
