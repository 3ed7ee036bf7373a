//! Whether every rule and every case has a test, or says what is owed.

mod ids;
mod names;
mod owed;
