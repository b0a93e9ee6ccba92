/*
 * Fuzzes SQLite with a big database in memory: the test case is SQL, run against tables that every run finds unchanged.
 *
 *     export AFL_LLVM_DENYLIST=FILE  # with the line "src: *sqlite_harness.c", so that only SQLite has edges
 *     afl-clang-fast -O2 -I SQLITE sqlite_harness.c SQLITE/sqlite3.c -o plain
 *     afl-clang-fast -O2 -DRESET -I SQLITE sqlite_harness.c SQLITE/sqlite3.c libreset.a -o reset
 *     afl-clang-fast -O2 -DPERSISTENT -I SQLITE sqlite_harness.c SQLITE/sqlite3.c -o persistent
 *
 * SQLITE_HARNESS_MIB is the size of the database in MiB; 0 leaves it empty.
 *
 * The fork server is deferred: it starts once the database exists. __AFL_FUZZ_INIT takes test cases from shared memory
 * and leaves standard input closed, so read them through __AFL_FUZZ_TESTCASE_BUF; a harness that reads standard input
 * fuzzes nothing, at a coverage of 0.02 %.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sqlite3.h"

#ifdef RESET
/* crates/fork/examples/reset.rs */
extern int palimpsest_rounds(void (*round)(unsigned long number, void *argument), void *argument);
#endif

__AFL_FUZZ_INIT();

enum {
  /* Instructions of SQLite's machine between two calls of `too_long`; this many calls end a test case: some ms. */
  STEPS_PER_CALL = 100,
  CALLS = 50,
  /* Bytes of text in a row of the big table. */
  ROW = 1000,
  LONGEST_SQL = 4096,
};

static int calls;

static int too_long(void *unused) {
  (void)unused;
  return ++calls > CALLS;
}

static void must(int code, sqlite3 *db, const char *what) {
  if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_ROW) {
    fprintf(stderr, "%s: %s\n", what, sqlite3_errmsg(db));
    exit(2);
  }
}

static void fill(sqlite3 *db, long mebibytes) {
  must(sqlite3_exec(db,
                    "CREATE TABLE small(id INTEGER PRIMARY KEY, name TEXT, price REAL);"
                    "CREATE INDEX small_name ON small(name);"
                    "INSERT INTO small VALUES(1,'one',1.5),(2,'two',2.5),(3,'three',NULL);"
                    "CREATE TABLE big(id INTEGER PRIMARY KEY, text TEXT);"
                    "CREATE VIEW joined AS SELECT * FROM small JOIN big USING(id);",
                    0, 0, 0),
       db, "the tables");
  char text[ROW];
  sqlite3_stmt *insert;
  must(sqlite3_exec(db, "BEGIN", 0, 0, 0), db, "BEGIN");
  must(sqlite3_prepare_v2(db, "INSERT INTO big VALUES(NULL, ?)", -1, &insert, 0), db, "the insertion");
  for (long row = 0; row < mebibytes * ((1 << 20) / ROW); row++) {
    memset(text, 'a' + row % 26, sizeof text);
    sqlite3_bind_text(insert, 1, text, sizeof text, SQLITE_STATIC);
    must(sqlite3_step(insert), db, "a row");
    sqlite3_reset(insert);
  }
  sqlite3_finalize(insert);
  must(sqlite3_exec(db, "COMMIT", 0, 0, 0), db, "COMMIT");
}

static void run(sqlite3 *db, const unsigned char *input, size_t length) {
  char sql[LONGEST_SQL + 1];
  if (length > LONGEST_SQL) length = LONGEST_SQL;
  memcpy(sql, input, length);
  sql[length] = 0;
  calls = 0;
  sqlite3_exec(db, sql, 0, 0, 0);
}

#ifdef RESET
static unsigned char *shared_input;

static void round_of(unsigned long number, void *db) {
  /* The snapshot was taken after the loop's first turn, so this call ends the last run and waits for this one. */
  if (number) __AFL_LOOP(1 << 30);
  run(db, shared_input, __AFL_FUZZ_TESTCASE_LEN);
}
#endif

int main(void) {
  sqlite3 *db;
  const char *size = getenv("SQLITE_HARNESS_MIB");
  must(sqlite3_open(":memory:", &db), 0, "open");
  /* Every run draws the same random numbers. Temporary tables are in memory, since their files have random names. */
  must(sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, 4711, db), db, "the seed");
  must(sqlite3_exec(db, "PRAGMA temp_store = MEMORY; SELECT random();", 0, 0, 0), db, "the random numbers");
  fill(db, size ? atol(size) : 512);
  sqlite3_progress_handler(db, STEPS_PER_CALL, too_long, 0);
  /* Nothing outside the process: no other databases, no huge values, no threads. */
  sqlite3_limit(db, SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_limit(db, SQLITE_LIMIT_LENGTH, 1 << 20);
  sqlite3_limit(db, SQLITE_LIMIT_WORKER_THREADS, 0);

  __AFL_INIT();
  unsigned char *input = __AFL_FUZZ_TESTCASE_BUF;

#ifdef RESET
  shared_input = input;
  if (__AFL_LOOP(1 << 30)) return palimpsest_rounds(round_of, db);
#elif defined PERSISTENT
  /* AFL++'s documentation names this number of runs for a process; it bounds what runs can leave to later ones. */
  while (__AFL_LOOP(10000)) run(db, input, __AFL_FUZZ_TESTCASE_LEN);
#else
  run(db, input, __AFL_FUZZ_TESTCASE_LEN);
#endif
  /* Take down neither the database nor the process: that would cost each run the 512 MiB. */
  _exit(0);
}
