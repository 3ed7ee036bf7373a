//! The pure core of capture: pgoutput bytes in, effects out. No async, no SQL client, no clock.
