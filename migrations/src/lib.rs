//! Tidegate's SQL schema and the gated loader that installs it.
//!
//! First thing that every process does with a database: [`connect_and_load`] replays the files of `sql/` if, and only
//! if, what this program carries differs from what the database was last loaded with (L1). Then [`definition::plan`]
//! and [`definition::apply`] bring the registrations of a file to it. The SQL itself holds the one parser of
//! definitions; this crate only hands them over.
//!
//! A data repair stands in its file behind `tidegate.upgrades_from_before(g)`, so that it runs where the generation changes (L9),
//! never on a mere connect. There is none yet.

pub mod check;
pub mod definition;
mod files;
mod gate;
mod load;
mod lock;
pub mod notice;
#[cfg(feature = "testing")]
pub mod testing;

pub use files::{File, GENERATION, LOADER, Schema};
pub use gate::{Decision, Mine, Reason, Stamp, decide};
pub use load::{
    Installed, LoadError, LoadOptions, Loaded, connect_and_load, force_replay, installed, load_schema,
    read_stamp,
};
