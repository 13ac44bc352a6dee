import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { LineReader } from "../lines.ts";

/** Of flock where somebody holds the lock. */
const LOCKED = 75;
const ANSWER_BYTES_MAX = 16;
/** One shell for all files: starting a program from here for each costs more than reading the file. */
const ASK = `while IFS= read -r lock; do
  { flock --shared --nonblock --conflict-exit-code ${LOCKED} 9; } 9<"$lock"
  echo $?
done`;

/** Tells whether files are locked: by the flock of util-linux, since Node has none. */
export class Locks {
  #shell: ChildProcess | null = null;
  readonly #waiting: ((code: string | null) => void)[] = [];

  /** Null where there is no flock of util-linux: then the size alone tells whether a file is whole. */
  static find(): Locks | null {
    const { stdout } = spawnSync("flock", ["--version"], { encoding: "utf8" });
    return stdout?.includes("util-linux") ? new Locks() : null;
  }

  /**
   * Whether anybody holds the lock of `file` (flock, exclusively). False also where that cannot be found out, as of a file
   * that is gone. `file` is one line.
   */
  async isHeld(file: string): Promise<boolean> {
    const shell = this.#shell ?? this.#start();
    const code = await new Promise<string | null>((resolve) => {
      this.#waiting.push(resolve);
      shell.stdin?.write(`${file}\n`);
    });
    return code === String(LOCKED);
  }

  close(): void {
    this.#shell?.stdin?.end();
  }

  #start(): ChildProcess {
    const shell = spawn("/bin/sh", ["-c", ASK], { stdio: ["pipe", "pipe", "ignore"] });
    const lines = new LineReader(ANSWER_BYTES_MAX, (line) => this.#waiting.shift()?.(line));
    shell.stdout.on("data", (chunk: Buffer) => lines.push(chunk));
    // Gone, or never there: the next question starts another.
    const end = () => {
      if (this.#shell !== shell) return;
      this.#shell = null;
      for (const resolve of this.#waiting.splice(0)) resolve(null);
    };
    shell.on("close", end);
    for (const emitter of [shell, shell.stdin]) emitter.on("error", end);
    this.#shell = shell;
    return shell;
  }
}
