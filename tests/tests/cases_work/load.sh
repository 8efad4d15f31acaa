# Transactions on a database, each on the disk before it counts, with either kind of journal.
cat > load.py <<'P'
import hashlib, sqlite3, sys

mode, path = sys.argv[1:]
base = sqlite3.connect(path, isolation_level=None)
print(*base.execute(f"pragma journal_mode={mode}").fetchone())
base.execute("pragma synchronous=full")
base.execute("create table entry (id integer primary key, name text unique, size int)")
for n in range(250):
    base.execute("begin immediate")
    base.executemany("insert into entry values (?, ?, ?)", [(n * 40 + k, f"name {n} {k}", n * k) for k in range(40)])
    base.execute("update entry set size = size + 1 where id % 7 = ?", (n % 7,)) if n % 10 == 0 else None
    base.execute("rollback" if n % 25 == 24 else "commit")
base.execute("delete from entry where id % 3 = 0")
base.execute("vacuum")
dump = "\n".join(base.iterdump())
print(*base.execute("pragma integrity_check").fetchone(), *base.execute("select count(*), sum(size) from entry").fetchone())
print(hashlib.sha256(dump.encode()).hexdigest())
base.close()
P
python3 load.py delete one.db
python3 load.py wal two.db
sqlite3 two.db 'pragma integrity_check; select count(*) from entry;'
ls
