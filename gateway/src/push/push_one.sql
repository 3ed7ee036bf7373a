-- Purpose: the usual push, one mutation that is accepted. Caller: push/transact.rs. Rides: as push.sql.
select taken, version
from tidegate.push_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
