//! The embedded PostgreSQL against real servers, 15 and 18.

use tidegate_embedded::Stop;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestDatabase, TestServer};

pg_test!(
    NoSlots,
    async fn a_database_per_test(db: TestDatabase) {
        assert_eq!(
            db.sql("select 1, null, 'x'").unwrap(),
            [[Some("1".to_owned()), None, Some("x".to_owned())]]
        );
    }
);

pg_test!(
    Private,
    async fn restart_keeps_port(server: TestServer) -> Result<(), Box<dyn std::error::Error>> {
        server.restart(Stop::Immediate)?;
        server.kill()?;
        server.start()?;
        assert_eq!(server.sql("postgres", "select 1")?.len(), 1);
        Ok(())
    }
);
