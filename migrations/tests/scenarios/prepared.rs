//! Two-phase commit: what is prepared is decoded at its commit, from whichever session and however much later.

use super::ROWS;
use crate::scenario::{Scenario, scenario};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("prepared: and committed")
            .setup(ROWS)
            .run("begin; update item set rev = 2; delete from item where id = 1; insert into item (id) values (1); prepare transaction 'p'")
            .on(1, "commit prepared 'p'")
            .run("update item set rev = 3; delete from item")
            .gives_count(3 + 1 + 1 + 3 + 3),
        scenario("prepared: and rolled back")
            .setup(ROWS)
            .run("begin; update item set rev = 2; delete from item where id = 1; prepare transaction 'p'")
            .on(1, "rollback prepared 'p'")
            .run("update item set rev = 3")
            .gives_count(3),
        scenario("prepared: others write meanwhile, and wait for its rows")
            .setup(ROWS)
            .run("begin; update item set rev = 2 where id = 1; prepare transaction 'p'")
            .on(1, "update item set rev = 5 where id = 2")
            .behind(2, "update item set rev = rev + 1 where id = 1")
            .on(1, "commit prepared 'p'")
            .gives(&["item U 2", "item U 1", "item U 1"]),
        scenario("prepared: with savepoints")
            .setup(ROWS)
            .run("begin; update item set rev = 2; savepoint s; update item set rev = 3; rollback to s; savepoint t; update item set rev = 4 where id = 1; release t; prepare transaction 'p'")
            .on(1, "commit prepared 'p'")
            .gives_count(4),
        scenario("prepared: an order that is broken fails before it is prepared")
            .setup(ROWS)
            .setup("select app_trigger(' early', 'after update', 'item', 'for each row', 'if new.rev = 2 then update item set rev = 3 where id = new.id; end if; return null;')")
            .refused("begin; update item set rev = 2; prepare transaction 'p'"),
        scenario("prepared: deferred triggers fire when it is prepared")
            .setup(ROWS)
            .setup("select app_trigger('at_commit', 'after update', 'item', 'deferrable initially deferred for each row', 'if new.rev = 2 then update item set rev = 3 where id = new.id; end if; return null;')")
            .run("begin; update item set rev = 2 where id < 3; prepare transaction 'p'")
            .on(1, "commit prepared 'p'")
            .gives(&["item U 1", "item U 2", "item U 1", "item U 2"]),
        scenario("prepared: two at once on different rows")
            .setup(ROWS)
            .run("begin; update item set rev = 2 where id = 1; prepare transaction 'p'")
            .on(1, "begin; update item set rev = 2 where id = 2; prepare transaction 'q'")
            .on(2, "commit prepared 'q'; ")
            .on(2, "commit prepared 'p'")
            .gives(&["item U 2", "item U 1"]),
    ]
}
