/** Starts the child given in argv as the supervisor does, prints its pid once it greeted, and waits to be killed. */
import { spawn } from "node:child_process";

const child = spawn(process.execPath, process.argv.slice(2), {
  detached: true,
  stdio: ["pipe", "pipe", "inherit"],
});
child.stdout.once("data", () => console.log(child.pid));
setInterval(() => {}, 60_000);
