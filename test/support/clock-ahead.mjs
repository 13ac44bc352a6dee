// Preloaded into a program and its worker threads (NODE_OPTIONS=--import=clock-ahead.mjs): its wall clock is
// FOREBAY_TEST_CLOCK_AHEAD_MS ahead of the machine's; the monotonic clock is as ever, as with a wrong clock.
const aheadMs = Number(process.env.FOREBAY_TEST_CLOCK_AHEAD_MS);
const RealDate = Date;

globalThis.Date = class extends RealDate {
  constructor(...fields) {
    if (fields.length === 0) super(RealDate.now() + aheadMs);
    else super(...fields);
  }

  static now() {
    return RealDate.now() + aheadMs;
  }
};
