import "./locale.ts";
import { render } from "preact";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { follow } from "./live.ts";
import { Page } from "./page.tsx";

follow();
render(<Page />, document.getElementById("page")!);
