// Preloaded into a supervisor: writes down what its ETA is told, so that other estimators can be tried on the same run.
import { appendFileSync } from "node:fs";
import { isMainThread } from "node:worker_threads";

const file = process.env.FOREBAY_BENCH_RECORDING;
// Engines and threads inherit the preload; only the supervisor has an estimator to listen to.
if (isMainThread && file && process.argv.includes("run")) {
  const { EtaLog } = await import("../../dist/run/eta.js");
  const { RunEta } = await import("../../dist/run/run-eta.js");
  const write = (event) => appendFileSync(file, `${JSON.stringify(event)}\n`);
  const rounded = (seconds) => Math.round(seconds * 1_000) / 1_000;
  const { batchComputed, packVerified } = EtaLog.prototype;
  EtaLog.prototype.batchComputed = function record(atS, { tokens, tokensSquared }, blockedS) {
    const event = { kind: "computed", atS: rounded(atS), tokens, tokensSquared, blockedS: rounded(blockedS) };
    write({ startS: rounded(this.startS), ...event });
    batchComputed.call(this, atS, { tokens, tokensSquared }, blockedS);
  };
  EtaLog.prototype.packVerified = function record(atS, bytes, starvedS) {
    write({ kind: "verified", atS: rounded(atS), bytes, starvedS: rounded(starvedS) });
    packVerified.call(this, atS, bytes, starvedS);
  };
  const { computed } = RunEta.prototype;
  RunEta.prototype.computed = function record(amount) {
    write({ kind: "facts", slots: this.slots + 1, attentionShare: this.attentionShare });
    computed.call(this, amount);
  };
}
