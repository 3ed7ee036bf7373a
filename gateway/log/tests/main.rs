//! The suite and the subscription loop over a log in memory, which proves loop and suite themselves, and over the effect log.
//! Here the effect log's rows are written by hand: what these tests prove is reading. That capture writes them rightly is proven
//! where capture and gateway run together.

mod effect_log;
mod memory;
