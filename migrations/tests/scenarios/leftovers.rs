//! F9, TX-03: whatever an earlier transaction, a bypassed trigger, a TRUNCATE or a restore left behind never makes a later write
//! fail.

use super::ROWS;
use crate::scenario::{Scenario, scenario};

const TRUNCATE: &str =
    "alter table item disable trigger \"!tidegate_truncate\"; truncate item; select public.awaken('item');";
/// Every kind of write after it.
const WRITES: &str = "insert into item (id) values (1), (2), (3) on conflict (id) do update set rev = 5; update item set rev = 6; delete from item where id = 2; insert into item (id) values (2)";
const WRITTEN: usize = 3 + 3 + 1 + 1;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("left by a truncate whose guard was disabled")
            .setup(ROWS)
            .bypass(TRUNCATE)
            .run(WRITES)
            .gives_count(WRITTEN),
        scenario("left by a truncate in a transaction that had changed the rows")
            .setup(ROWS)
            .bypass(format!("begin; update item set rev = 2; {TRUNCATE} commit"))
            .run(WRITES)
            .gives_count(WRITTEN),
        scenario("left by a truncate within the same transaction")
            .setup(ROWS)
            // What it had changed before is truncated away, and still fenced in the order of the WAL.
            .run(format!("begin; update item set rev = 2; {TRUNCATE} {WRITES}; commit"))
            .gives_count(3 + WRITTEN),
        scenario("left by a truncate that was rolled back")
            .setup(ROWS)
            .run(format!("begin; update item set rev = 2; savepoint s; {TRUNCATE} insert into item (id) values (1); rollback to s; update item set rev = 3; commit"))
            .run(WRITES)
            .gives_count(6 + 3 + 3 + 1 + 1),
        scenario("left by rows inserted around the triggers")
            .bypass("select public.silence('item'); insert into item (id) values (1), (2), (3); select public.awaken('item')")
            .run(WRITES)
            .gives_count(WRITTEN),
        scenario("left by rows deleted around the triggers")
            .setup(ROWS)
            .bypass("select public.silence('item'); delete from item; select public.awaken('item')")
            .run(WRITES)
            .gives_count(WRITTEN),
        scenario("left by rows updated, deleted and inserted around the triggers")
            .setup(ROWS)
            .bypass("select public.silence('item'); update item set rev = 5; delete from item where id = 2; insert into item (id) values (4); delete from item where id = 3; insert into item (id) values (3); select public.awaken('item')")
            .run("update item set rev = 6; insert into item (id) values (2); delete from item where id = 4; delete from item where id = 3")
            .gives_count(3 + 1 + 2),
        scenario("left by rows from before the registration")
            .bypass("create table public.old (id int primary key, n int); insert into old select g, 0 from generate_series(1, 5) g; delete from old where id = 5; select public.watch('public.old')")
            .run("update old set n = 1 where id = 1; delete from old where id = 2; insert into old values (2, 2), (5, 5); update old set n = n + 1; delete from old")
            .gives_count(1 + 1 + 2 + 5 + 5),
        scenario("left by rows that the registering transaction wrote before it registered")
            .bypass("begin; create table public.fresh (id int primary key, n int); insert into fresh values (1, 1), (2, 2); update fresh set n = 3; select public.watch('public.fresh'); update fresh set n = 4; delete from fresh where id = 1; insert into fresh values (1, 5); commit")
            .run("update fresh set n = 6; delete from fresh; insert into fresh values (1, 7)")
            .gives_count(2 + 2 + 1),
        scenario("left by a restore whose transaction ids are counted anew")
            .setup(ROWS)
            .bypass("update tidegate.row_version_2 set xid = (pg_current_xact_id()::text::bigint + 1)::text::xid8, tid = '(77,7)', tid0 = '(77,6)', alive = key = 1")
            .run(WRITES)
            .gives_count(WRITTEN),
        scenario("left by a restore, with the state of this very transaction")
            .setup(ROWS)
            .run("begin; update tidegate.row_version_2 set xid = pg_current_xact_id(), filenode = pg_relation_filenode('public.item'), tid = '(77,7)', tid0 = '(77,6)', alive = key = 1;
                update item set rev = 2; delete from item where id = 2; insert into item (id) values (2); commit")
            .gives(&["item U 1", "item U 2", "item U 3", "item D 2", "item I 2"]),
        scenario("left by somebody who emptied our table")
            .setup(ROWS)
            .bypass("delete from tidegate.row_version_2 where key < 3")
            .run(WRITES)
            .gives_count(WRITTEN),
        scenario("left by a fence that was disabled and a guard that was not")
            .setup(ROWS)
            .bypass("alter table item disable trigger \"!tidegate_fence\"; update item set rev = 2; alter table item enable always trigger \"!tidegate_fence\"")
            .run(WRITES)
            .gives_count(WRITTEN),
        scenario("left by a fence that was disabled in mid-transaction")
            .setup(ROWS)
            .bypass("begin; update item set rev = 2; select public.silence('item'); update item set rev = 3; select public.awaken('item'); commit")
            .run(WRITES)
            .gives_count(WRITTEN),
        scenario("left by a key that changed while the guards were off")
            .setup(ROWS)
            .bypass("select public.silence('item'); update item set id = 30 where id = 3; select public.awaken('item')")
            .run("insert into item (id) values (3); update item set rev = 2; delete from item where id = 30")
            .gives_count(1 + 4 + 1),
        scenario("left by an order that was refused")
            .setup(ROWS)
            .setup("select app_trigger(' early', 'after update', 'item', 'for each row', 'if new.rev = 66 then update item set rev = 67 where id = new.id; end if; return null;')")
            .refused("update item set rev = 66 where id = 1")
            .run(WRITES)
            .gives_count(WRITTEN),
        scenario("left by an uninstalled and reinstalled fence")
            .setup(ROWS)
            .bypass("drop trigger \"!tidegate_fence\" on item; drop trigger \"~tidegate_guard\" on item; update item set rev = 3; delete from item where id = 1; select tidegate.install_fences(2)")
            .run(WRITES)
            .gives_count(WRITTEN),
    ]
}
