//! Removing everything of ours: what is there ([`plan`]), and the removal ([`remove`]). `commands/uninstall.rs` asks and prints.
//!
//! One transaction removes what is transactional: triggers, publication, functions, schemas; `tidegate.uninstall()` does it, so that each
//! version removes what it installed. Slots are dropped afterwards: if we die in between, the next run finds them by their names.

pub mod plan;
pub mod remove;
