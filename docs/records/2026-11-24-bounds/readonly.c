// SQLite with its database in a sealed file that is mapped shared and read-only, and nothing of ours: the least target
// of AFL++ that has so much memory. The pages are read where they lie (`sqlite3_deserialize`).
//
//     afl-clang-fast -O2 readonly.c sqlite3.o -lm -lpthread -ldl -o readonly      (sqlite3.o as in the suite `afl`)
//     READONLY_MIB=512 ./readonly
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sqlite3.h"

__AFL_FUZZ_INIT();

static void must(int right, const char *what) {
  if (right) return;
  perror(what);
  exit(2);
}

static void fill(sqlite3 *db, long mebibytes) {
  char text[1000];
  sqlite3_stmt *insert;
  must(!sqlite3_exec(db,
                     "CREATE TABLE small(id INTEGER PRIMARY KEY, name TEXT, price REAL);"
                     "CREATE INDEX small_name ON small(name);"
                     "INSERT INTO small VALUES(1,'one',1.5),(2,'two',2.5),(3,'three',NULL);"
                     "CREATE TABLE big(id INTEGER PRIMARY KEY, text TEXT);"
                     "CREATE VIEW joined AS SELECT * FROM small JOIN big USING(id); BEGIN",
                     0, 0, 0), "the tables");
  must(!sqlite3_prepare_v2(db, "INSERT INTO big VALUES(NULL, ?)", -1, &insert, 0), "the insertion");
  for (long row = 0; row < mebibytes * ((1 << 20) / 1000); row++) {
    memset(text, 'a' + row % 26, sizeof text);
    sqlite3_bind_text(insert, 1, text, sizeof text, SQLITE_STATIC);
    must(sqlite3_step(insert) == SQLITE_DONE, "a row");
    sqlite3_reset(insert);
  }
  sqlite3_finalize(insert);
  must(!sqlite3_exec(db, "COMMIT", 0, 0, 0), "COMMIT");
}

int main(void) {
  long mebibytes = atol(getenv("READONLY_MIB"));
  sqlite3 *db;
  must(!sqlite3_open(":memory:", &db), "open");
  fill(db, mebibytes);
  sqlite3_int64 size;
  unsigned char *made = sqlite3_serialize(db, "main", &size, 0);
  must(made != 0, "serialize");
  int file = memfd_create("database", MFD_ALLOW_SEALING | MFD_CLOEXEC);
  for (long at = 0, wrote; at < size; at += wrote) {
    wrote = pwrite(file, made + at, size - at, at);
    must(wrote > 0, "write");
  }
  sqlite3_free(made);
  sqlite3_close(db);
  must(!fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL), "seal");
  unsigned char *image = mmap(0, size, PROT_READ, MAP_SHARED, file, 0);
  must(image != MAP_FAILED, "mmap");
  close(file);
  must(!sqlite3_open(":memory:", &db), "open");
  must(!sqlite3_exec(db, "PRAGMA mmap_size = 4294967296; PRAGMA temp_store = MEMORY; SELECT random();", 0, 0, 0),
       "the settings");
  must(!sqlite3_deserialize(db, "main", image, size, size, SQLITE_DESERIALIZE_READONLY), "deserialize");
  // The schema is known before the fork server starts, as in the suite's harness.
  must(!sqlite3_exec(db, "SELECT count(*) FROM small", 0, 0, 0), "the schema");
  __AFL_INIT();
  unsigned char *input = __AFL_FUZZ_TESTCASE_BUF;
  char sql[4097];
  size_t length = __AFL_FUZZ_TESTCASE_LEN;
  if (length > 4096) length = 4096;
  memcpy(sql, input, length);
  sql[length] = 0;
  sqlite3_exec(db, sql, 0, 0, 0);
  _exit(0);
}
