process.env.FOREBAY_TEST_KILLS ??= "1000";
await import("../kills.test.ts");
