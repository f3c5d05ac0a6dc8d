/* Preloaded into a process (LD_PRELOAD), it counts the calls that change files under one folder and, at the k-th, makes
 * the process die or stand still, or makes the call fail. It can also write down all of them, with their data, so that
 * the disks which a power cut leaves behind can be made afterwards. tests/support/shim.py speaks to it.
 *
 * Counters lie in shared memory, so that whoever forked a process can read them after its death. SQLite's -shm file is
 * left out: it is rebuilt after every crash and is no part of what must survive.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum action { COUNT, KILL_BEFORE, KILL_AFTER, FAIL_EIO, FAIL_ENOSPC, STOP };
enum kind { WRITE, TRUNCATE, SYNC, CREATE, RENAME, UNLINK, LINK, MAKE_FOLDER, SAID };

struct counters {
    long calls;
    long fired;
    char where[PATH_MAX + 32];
};

/* One record of the log; the path and the data follow it. */
struct record {
    uint32_t kind;
    uint32_t path_bytes;
    uint64_t offset;
    uint64_t data_bytes;
};

static struct counters *counters;
static char folder[PATH_MAX];
static size_t folder_bytes;
static long at;
static int action, for_good;
static int log_fd = -1;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* The C library's own function, looked up at its first use. */
#define REAL(type, name, ...)                                                                                          \
    static type (*real)(__VA_ARGS__);                                                                                  \
    if (!real)                                                                                                         \
        real = dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void) {
    counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counters == MAP_FAILED)
        abort();
}

/* Spoken to from Python. */

void shim_arm(const char *path, long which, int what, int always) {
    snprintf(folder, sizeof folder, "%s", path);
    folder_bytes = strlen(folder);
    at = which, action = what, for_good = always;
    memset(counters, 0, sizeof *counters);
}

void shim_disarm(void) { action = COUNT; }
long shim_calls(void) { return counters->calls; }
long shim_fired(void) { return counters->fired; }
const char *shim_where(void) { return counters->where; }

static void append(const void *data, size_t bytes) {
    /* The system call itself: the log's own writes are not counted. */
    for (size_t done = 0; done < bytes;) {
        ssize_t written = syscall(SYS_write, log_fd, (const char *)data + done, bytes - done);
        if (written < 0)
            abort();
        done += written;
    }
}

static void write_down(enum kind kind, const char *path, off_t offset, const void *data, size_t bytes) {
    struct record record = {kind, strlen(path), offset, bytes};
    append(&record, sizeof record);
    append(path, record.path_bytes);
    append(data, bytes);
}

void shim_record(const char *path, const char *log) {
    shim_arm(path, 0, COUNT, 0);
    log_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
    if (log_fd < 0)
        abort();
}

void shim_say(const char *text) {
    pthread_mutex_lock(&one_at_a_time);
    write_down(SAID, "", 0, text, strlen(text));
    pthread_mutex_unlock(&one_at_a_time);
}

/* Which file a call is about; false for one that is not watched. */

static int watched(const char *path) {
    size_t bytes = strlen(path);
    int shared_index = bytes > 4 && !strcmp(path + bytes - 4, "-shm");
    int inside = folder_bytes && !strncmp(path, folder, folder_bytes);
    return inside && (path[folder_bytes] == '/' || !path[folder_bytes]) && !shared_index;
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, path, PATH_MAX - 1);
    if (bytes <= 0)
        return 0;
    path[bytes] = 0;
    return watched(path);
}

static int path_at(int directory, const char *name, char *path) {
    if (name[0] == '/' || directory == AT_FDCWD) {
        snprintf(path, PATH_MAX, "%s", name);
        return watched(path);
    }
    char above[PATH_MAX];
    if (!path_of(directory, above))
        return 0;
    return snprintf(path, PATH_MAX, "%s/%s", above, name) < PATH_MAX && watched(path);
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        pause();
}

/* Counts a call and acts if its turn has come. Returns the error it must fail with, or 0; `last` is set when the
 * process must die behind it. */
static int pass(const char *call, const char *path, int *last) {
    long number = __atomic_add_fetch(&counters->calls, 1, __ATOMIC_SEQ_CST);
    *last = 0;
    if (action == COUNT || number < at || (number > at && !for_good))
        return 0;
    __atomic_add_fetch(&counters->fired, 1, __ATOMIC_SEQ_CST);
    if (number == at)
        snprintf(counters->where, sizeof counters->where, "%s %s", call, path + folder_bytes);
    switch (action) {
    case KILL_BEFORE:
        die();
        return 0;
    case KILL_AFTER:
        *last = 1;
        return 0;
    case FAIL_EIO:
        return EIO;
    case FAIL_ENOSPC:
        return ENOSPC;
    default:
        syscall(SYS_kill, getpid(), SIGSTOP);
        return 0;
    }
}

/* The body of a call on `path`: pass, do it, write it down in the order in which it was done. */
#define ACT(type, name, call, done, ...)                                                                               \
    int last, error = pass(name, path, &last);                                                                         \
    if (error) {                                                                                                       \
        errno = error;                                                                                                 \
        return -1;                                                                                                     \
    }                                                                                                                  \
    if (log_fd >= 0)                                                                                                   \
        pthread_mutex_lock(&one_at_a_time);                                                                            \
    type result = call;                                                                                                \
    if (log_fd >= 0) {                                                                                                 \
        int kept = errno;                                                                                              \
        if (done)                                                                                                      \
            write_down(__VA_ARGS__);                                                                                   \
        pthread_mutex_unlock(&one_at_a_time);                                                                          \
        errno = kept;                                                                                                  \
    }                                                                                                                  \
    if (last)                                                                                                          \
        die();                                                                                                         \
    return result

#define ON_FD(call)                                                                                                    \
    char path[PATH_MAX];                                                                                               \
    if (!path_of(fd, path))                                                                                            \
    return call

#define ON_PATH(directory, name, call)                                                                                 \
    char path[PATH_MAX];                                                                                               \
    if (!path_at(directory, name, path))                                                                               \
    return call

/* Calls on an open file. */

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    ON_FD(real(fd, data, bytes, offset));
    ACT(ssize_t, "pwrite", real(fd, data, bytes, offset), result > 0, WRITE, path, offset, data, result);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) { return pwrite64(fd, data, bytes, offset); }

ssize_t write(int fd, const void *data, size_t bytes) {
    REAL(ssize_t, "write", int, const void *, size_t);
    ON_FD(real(fd, data, bytes));
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ACT(ssize_t, "write", real(fd, data, bytes), result > 0, WRITE, path, offset, data, result);
}

/* Nothing is really synced: a process that dies leaves its writes to the kernel, and what a power cut leaves behind is
 * made from the recording. So a thousand runs cost no disk its time. */

int fsync(int fd) {
    REAL(int, "fsync", int);
    ON_FD(real(fd));
    ACT(int, "fsync", 0, 1, SYNC, path, 0, "", 0);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    ON_FD(real(fd));
    ACT(int, "fdatasync", 0, 1, SYNC, path, 0, "", 0);
}

int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    ON_FD(real(fd, size));
    ACT(int, "ftruncate", real(fd, size), result == 0, TRUNCATE, path, size, "", 0);
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

/* Calls on names. */

int renameat(int from, const char *old, int to, const char *name) {
    REAL(int, "renameat", int, const char *, int, const char *);
    char target[PATH_MAX];
    ON_PATH(from, old, real(from, old, to, name));
    path_at(to, name, target);
    ACT(int, "rename", real(from, old, to, name), result == 0, RENAME, path, 0, target, strlen(target));
}

int rename(const char *old, const char *name) { return renameat(AT_FDCWD, old, AT_FDCWD, name); }

int linkat(int from, const char *old, int to, const char *name, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    char target[PATH_MAX];
    ON_PATH(from, old, real(from, old, to, name, flags));
    path_at(to, name, target);
    ACT(int, "link", real(from, old, to, name, flags), result == 0, LINK, path, 0, target, strlen(target));
}

int link(const char *old, const char *name) { return linkat(AT_FDCWD, old, AT_FDCWD, name, 0); }

int unlinkat(int directory, const char *name, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    ON_PATH(directory, name, real(directory, name, flags));
    ACT(int, "unlink", real(directory, name, flags), result == 0, UNLINK, path, 0, "", 0);
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int directory, const char *name, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    ON_PATH(directory, name, real(directory, name, mode));
    ACT(int, "mkdir", real(directory, name, mode), result == 0, MAKE_FOLDER, path, 0, "", 0);
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* Opening is not counted, because a file that was only made holds nothing; but its name is written down. */
static int open_at(int directory, const char *name, int flags, mode_t mode) {
    REAL(int, "openat64", int, const char *, int, ...);
    char path[PATH_MAX];
    if (log_fd < 0 || !(flags & O_CREAT) || !path_at(directory, name, path))
        return real(directory, name, flags, mode);
    struct stat status;
    pthread_mutex_lock(&one_at_a_time);
    int is_new = lstat(path, &status) != 0;
    int fd = real(directory, name, flags, mode);
    if (fd >= 0 && is_new)
        write_down(CREATE, path, 0, "", 0);
    else if (fd >= 0 && flags & O_TRUNC)
        write_down(TRUNCATE, path, 0, "", 0);
    pthread_mutex_unlock(&one_at_a_time);
    return fd;
}

int openat(int directory, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_at(directory, path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open_at(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int openat64(int directory, const char *path, int flags, ...) __attribute__((alias("openat")));
