//! The embedded PostgreSQL against real servers, 15 and 18.

mod clusters;
mod parents;
mod roles;
mod servers;

/// Makes one test per PostgreSQL version out of a function of the major version.
macro_rules! on_each_version {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[test]
            fn pg15() {
                super::super::asked_for(15).map(super::$name).unwrap_or_default()
            }
            #[test]
            fn pg18() {
                super::super::asked_for(18).map(super::$name).unwrap_or_default()
            }
        }
    )+};
}
use on_each_version;

fn asked_for(major: u32) -> Option<u32> {
    let asked = tidegate_embedded::testing::majors().contains(&major);
    if !asked {
        eprintln!("TIDEGATE_TEST_PG leaves PostgreSQL {major} out: nothing is tested here");
    }
    asked.then_some(major)
}
