/* SPDX-License-Identifier: Apache-2.0
 * Whoever can write into the runtime directory can put a socket of his own where clients expect
 * hvdd, so everything is checked on an open descriptor (O_NOFOLLOW), not on a path that may change
 * in between. /tmp is the last resort and only with mode 0700.
 *
 * The lock file may be removed by the hvdd that ends while the next one waits for it; after the
 * lock was taken, the locked file must therefore still be the one under that name. */
#include "daemon/node/rundir.h"

#include "base/fate.h"
#include "base/runtime.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LOCK_NAME   "hvdd.lock"
#define STORED_MARK "stored\n"
#define NOBODY      "unknown" /* has had the lock */
#define LEFT_NAP_NS 1000000   /* between two tries to take a lock that is about to be free */
#define LEFT_ROUNDS 5000
#define OPEN_ROUNDS 16

#define FOR_ALL "/run/hvdd"

int node_rundir_default(uid_t uid, char *path_p, size_t path_size)
{
    const struct passwd *user = getpwuid(uid);
    const char *session = hvi_runtime_dir(uid);
    int length;

    if (uid == 0 || (user != NULL && strcmp(user->pw_name, "hvdd") == 0))
        length = snprintf(path_p, path_size, FOR_ALL);
    else if (session != NULL)
        length = snprintf(path_p, path_size, "%s/hvdd", session);
    else
        length = snprintf(path_p, path_size, "/tmp/hvdd-%u", (unsigned)uid);
    return length > 0 && (size_t)length < path_size ? HVI_OK : HVI_ERR_INVALID;
}

bool node_rundir_is_private(int64_t option, uid_t uid)
{
    char place[HVI_WIRE_PATH];

    if (option >= 0)
        return option > 0;
    return node_rundir_default(uid, place, sizeof(place)) != HVI_OK || strcmp(place, FOR_ALL) != 0;
}

bool node_rundir_socket_path(const struct node_rundir *rundir, const char *name, char *path_p,
                             size_t path_size)
{
    int length = snprintf(path_p, path_size, "%s/%s", rundir->path, name);
    return length > 0 && (size_t)length < path_size &&
           (size_t)length < sizeof(((struct sockaddr_un *)0)->sun_path);
}

static int check_dir(int dir_fd, const char *path, bool private_mode, char *text_p,
                     size_t text_size)
{
    struct stat info;
    mode_t forbidden = private_mode ? 077 : 022;

    if (fstat(dir_fd, &info) != 0) {
        snprintf(text_p, text_size, "cannot look at %s: %s", path, strerror(errno));
        return HVI_ERR_REFUSED;
    }
    if (info.st_uid != geteuid()) {
        snprintf(text_p, text_size, "%s belongs to uid %u and not to uid %u, as whom hvdd runs",
                 path, (unsigned)info.st_uid, (unsigned)geteuid());
        return HVI_ERR_REFUSED;
    }
    if ((info.st_mode & forbidden) != 0) {
        snprintf(text_p, text_size, "%s has mode %04o; %s, so it must be at most %04o", path,
                 (unsigned)(info.st_mode & 07777),
                 private_mode ? "a private hvdd keeps others out" : "others may not write there",
                 (unsigned)(0777 & ~forbidden));
        return HVI_ERR_REFUSED;
    }
    return HVI_OK;
}

static int open_dir(const char *path, bool private_mode, bool *created_p, char *text_p,
                    size_t text_size)
{
    bool created = mkdir(path, 0700) == 0;
    int dir_fd;

    if (!created && errno != EEXIST) {
        snprintf(text_p, text_size, "cannot make the directory %s: %s", path, strerror(errno));
        return -1;
    }
    dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir_fd < 0) {
        bool not_dir = errno == ENOTDIR || errno == ELOOP;
        snprintf(text_p, text_size, "cannot use %s: %s", path,
                 not_dir ? "it is a link or no directory" : strerror(errno));
        return -1;
    }
    if (created && !private_mode && fchmod(dir_fd, 0755) != 0) {
        snprintf(text_p, text_size, "cannot set the mode of %s: %s", path, strerror(errno));
        goto failed;
    }
    if (check_dir(dir_fd, path, private_mode, text_p, text_size) != HVI_OK)
        goto failed;
    *created_p = created;
    return dir_fd;
failed:
    close(dir_fd);
    if (created)
        rmdir(path);
    return -1;
}

static bool still_there(int dir_fd, int lock_fd)
{
    struct stat locked, named;
    return fstat(lock_fd, &locked) == 0 &&
           fstatat(dir_fd, LOCK_NAME, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           locked.st_ino == named.st_ino && locked.st_dev == named.st_dev;
}

/* What the last holder wrote: its pid, and perhaps that it had stored its socket. */
static void read_lock(int lock_fd, char *pid_p, size_t pid_size, bool *stored_p)
{
    char text[64];
    ssize_t length = pread(lock_fd, text, sizeof(text) - 1, 0);

    text[length > 0 ? length : 0] = '\0';
    *stored_p = strstr(text, STORED_MARK) != NULL;
    text[strcspn(text, "\n")] = '\0';
    snprintf(pid_p, pid_size, "%.15s", text[0] != '\0' ? text : NOBODY);
}

/* Only a courtesy for those who read it; the lock itself holds without. The file is never empty in
 * between, because others may read it just then. */
static void write_lock(int lock_fd, const char *mark)
{
    char text[64];

    snprintf(text, sizeof(text), "%d\n%s", (int)getpid(), mark);
    if (pwrite(lock_fd, text, strlen(text), 0) < 0 || ftruncate(lock_fd, (off_t)strlen(text)) != 0)
        errno = 0;
}

void node_rundir_mark_stored(const struct node_rundir *rundir)
{
    if (rundir->lock_fd >= 0)
        write_lock(rundir->lock_fd, STORED_MARK);
}

/* A hvdd has its sockets from the lock to its end but for moments, and takes them away first. */
static bool has_socket(int dir_fd)
{
    return faccessat(dir_fd, "attach.sock", F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* False: another hvdd has it. One that ends is waited for: it takes its socket away first and gives the lock back last. An
 * engine that a killed hvdd was just starting has that one's descriptors, and with them its lock, until it execs. Of several
 * new hvdds that wait for that, one gets the lock and writes its own pid. */
static bool take_lock(int dir_fd, int lock_fd, char *pid_p, size_t pid_size, bool *stored_p)
{
    const struct timespec nap = {.tv_nsec = LEFT_NAP_NS};

    for (int round = 0; flock(lock_fd, LOCK_EX | LOCK_NB) != 0; round++) {
        read_lock(lock_fd, pid_p, pid_size, stored_p);
        int holder = atoi(pid_p);
        char state = holder > 0 ? hvi_process_state(holder) : '?';
        bool ends = state == 'X' || state == 'Z' || !has_socket(dir_fd);
        if (!ends || round == LEFT_ROUNDS)
            return false;
        nanosleep(&nap, NULL);
    }
    read_lock(lock_fd, pid_p, pid_size, stored_p);
    return true;
}

static int lock_dir(int dir_fd, const char *path, bool *left_p, bool *stored_p, char *text_p,
                    size_t text_size)
{
    char pid[16];
    int lock_fd;

    for (int round = 0; round < 16; round++) {
        lock_fd = openat(dir_fd, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (lock_fd < 0) {
            snprintf(text_p, text_size, "cannot open %s/%s: %s", path, LOCK_NAME, strerror(errno));
            return -1;
        }
        if (!take_lock(dir_fd, lock_fd, pid, sizeof(pid), stored_p)) {
            snprintf(text_p, text_size, "another hvdd (pid %s) serves %s", pid, path);
            close(lock_fd);
            return -1;
        }
        if (still_there(dir_fd, lock_fd)) {
            *left_p = strcmp(pid, NOBODY) != 0;
            write_lock(lock_fd, "");
            return lock_fd;
        }
        close(lock_fd);
    }
    snprintf(text_p, text_size, "%s/%s keeps changing", path, LOCK_NAME);
    return -1;
}

/* By the hvdd that had made it, which was waited for. */
static bool is_removed(int dir_fd)
{
    struct stat info;
    return fstat(dir_fd, &info) == 0 && info.st_nlink == 0;
}

int node_rundir_open(const char *path, bool private_mode, struct node_rundir *rundir_p,
                     char *text_p, size_t text_size)
{
    struct node_rundir rundir = NODE_RUNDIR_INIT;
    bool removed = true;

    if (strlen(path) >= sizeof(rundir.path) || path[0] != '/') {
        snprintf(text_p, text_size,
                 "runtime-dir must be an absolute path of at most %d bytes: %.64s",
                 HVI_WIRE_PATH - 1, path);
        return HVI_ERR_REFUSED;
    }
    strcpy(rundir.path, path);
    for (int round = 0; round < OPEN_ROUNDS && rundir.lock_fd < 0 && removed; round++) {
        int dir_fd = open_dir(path, private_mode, &rundir.created, text_p, text_size);
        if (dir_fd < 0)
            return HVI_ERR_REFUSED;
        rundir.lock_fd = lock_dir(dir_fd, path, &rundir.left, &rundir.stored, text_p, text_size);
        removed = is_removed(dir_fd);
        close(dir_fd);
    }
    if (rundir.lock_fd < 0)
        return HVI_ERR_REFUSED; /* a directory we just made is left to the hvdd that was faster */
    *rundir_p = rundir;
    return HVI_OK;
}

void node_rundir_close(struct node_rundir *rundir)
{
    char lock[HVI_WIRE_PATH + sizeof(LOCK_NAME) + 1];

    if (rundir->lock_fd < 0)
        return;
    snprintf(lock, sizeof(lock), "%s/%s", rundir->path, LOCK_NAME);
    unlink(lock);
    if (rundir->created)
        rmdir(rundir->path); /* stays when somebody put something there */
    close(rundir->lock_fd);
    rundir->lock_fd = -1;
}
