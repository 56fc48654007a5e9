/* A stand-in for NCCL's checkpoint shim and the one communicator that it looks after.
 *
 * The communicator is a star of real TCP connections between ranks: rank 0 adds up what the others
 * send. As with NCCL, ncclCheckpointPrepare is collective and closes all of it, and
 * ncclCheckpointRestore meets anew: rank 0 listens where it now is and sets a binary key of 128
 * bytes, the others poll for it every 10 ms, over a connection that is there for that time alone.
 * While the communicator stands there is a thread "NCCL Service 0" and, unless NCCL_SHM_DISABLE is 1,
 * a file /dev/shm/nccl-*.
 *
 * Files named $FAKE_NCCL.<what>.<rank> change what a rank does: `prepare` and `absent` make it wait
 * in Prepare, or in Restore before it comes to anybody, as long as the file is there; `fails` makes
 * Restore fail. $FAKE_NCCL_BUILT_FOR is the version code that it says it was built for.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4 };

#define RANKS_MAX 64
#define UID_BYTES 128
#define LINE_BYTES 512
#define KEY "restore/00c0ffee00c0ffee/uid"
#define MAGIC "uid\0\r\n$-1\r\n" /* what only survives where values are bytes */

struct uid {
  char magic[sizeof(MAGIC)];
  struct in_addr address;
  in_port_t port;
};

static int my_rank = -1, rank_count, peers[RANKS_MAX], prepared;
static char memory_name[64];
static void *memory;
static pthread_t service;
static int wake[2];

static void pause_ms(long ms) {
  struct timespec span = {ms / 1000, (ms % 1000) * 1000000};
  nanosleep(&span, NULL);
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double timeout_s(void) {
  const char *given = getenv("NCCL_CHECKPOINT_KVS_TIMEOUT");
  return given != NULL && *given != '\0' ? atof(given) : 300.0;
}

static int told(const char *what) {
  char path[LINE_BYTES];
  const char *prefix = getenv("FAKE_NCCL");
  if (prefix == NULL) return 0;
  snprintf(path, sizeof(path), "%s.%s.%d", prefix, what, my_rank);
  return access(path, F_OK) == 0;
}

static int send_all(int fd, const void *data, size_t size) {
  while (size > 0) {
    ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return -1;
    data = (const char *)data + sent;
    size -= (size_t)sent;
  }
  return 0;
}

static int receive_all(int fd, void *data, size_t size) {
  while (size > 0) {
    ssize_t got = recv(fd, data, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    data = (char *)data + got;
    size -= (size_t)got;
  }
  return 0;
}

/* -- the communicator ------------------------------------------------------------------------- */

static void *serve(void *unused) {
  char byte;
  while (read(wake[0], &byte, 1) < 0 && errno == EINTR) {
  }
  return unused;
}

static int share_memory(void) {
  const char *disabled = getenv("NCCL_SHM_DISABLE");
  int fd;
  memory = MAP_FAILED;
  if (disabled != NULL && strcmp(disabled, "1") == 0) return 0;
  snprintf(memory_name, sizeof(memory_name), "/dev/shm/nccl-XXXXXX");
  if ((fd = mkstemp(memory_name)) < 0 || ftruncate(fd, 4096) != 0) return -1;
  memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return memory == MAP_FAILED ? -1 : 0;
}

static int begin_traces(void) {
  if (share_memory() != 0 || pipe2(wake, O_CLOEXEC) != 0) return -1;
  if (pthread_create(&service, NULL, serve, NULL) != 0) return -1;
  return pthread_setname_np(service, "NCCL Service 0");
}

static void end_traces(void) {
  if (write(wake[1], "", 1) == 1) pthread_join(service, NULL);
  close(wake[0]);
  close(wake[1]);
  if (memory == MAP_FAILED) return;
  munmap(memory, 4096);
  unlink(memory_name);
}

static int listen_at(in_port_t *port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = *port};
  socklen_t size = sizeof(at);
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(fd, RANKS_MAX) != 0) return -1;
  if (getsockname(fd, (struct sockaddr *)&at, &size) != 0) return -1;
  *port = at.sin_port;
  return fd;
}

static int join_root(struct in_addr address, in_port_t port, double until) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = port, .sin_addr = address};
  do {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0) {
      peers[0] = fd;
      return send_all(fd, &my_rank, sizeof(my_rank));
    }
    close(fd);
    pause_ms(20);
  } while (now_s() < until);
  return -1;
}

static int accept_all(int listener) {
  for (int others = 1; others < rank_count; others++) {
    int rank, fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || receive_all(fd, &rank, sizeof(rank)) != 0) return -1;
    if (rank <= 0 || rank >= rank_count) return -1;
    peers[rank] = fd;
  }
  close(listener);
  return 0;
}

int fakeNcclAllReduce(int64_t value, int64_t *sum) {
  int64_t theirs;
  *sum = value;
  if (my_rank != 0) {
    if (send_all(peers[0], &value, sizeof(value)) != 0) return SYSTEM_ERROR;
    return receive_all(peers[0], sum, sizeof(*sum)) == 0 ? SUCCESS : SYSTEM_ERROR;
  }
  for (int rank = 1; rank < rank_count; rank++) {
    if (receive_all(peers[rank], &theirs, sizeof(theirs)) != 0) return SYSTEM_ERROR;
    *sum += theirs;
  }
  for (int rank = 1; rank < rank_count; rank++) {
    if (send_all(peers[rank], sum, sizeof(*sum)) != 0) return SYSTEM_ERROR;
  }
  return SUCCESS;
}

int fakeNcclInit(int rank, int count, const char *root, int port) {
  in_port_t at = htons((in_port_t)port);
  struct in_addr address;
  int failed, listener;
  if (count > RANKS_MAX || inet_aton(root, &address) == 0) return INVALID_ARGUMENT;
  my_rank = rank;
  rank_count = count;
  if (rank == 0) {
    if ((listener = listen_at(&at)) < 0) return SYSTEM_ERROR;
    failed = accept_all(listener);
  } else {
    failed = join_root(address, at, now_s() + timeout_s());
  }
  return failed || begin_traces() ? SYSTEM_ERROR : SUCCESS;
}

/* -- the store, as nccl_checkpoint's client speaks to it -------------------------------------- */

struct store {
  int fd;
  char prefix[LINE_BYTES];
};

static int open_store(struct store *store, double until) {
  char line[LINE_BYTES], host[64];
  const char *path = getenv("NCCL_CHECKPOINT_KVS_PATH");
  struct sockaddr_in at = {.sin_family = AF_INET};
  FILE *file = path != NULL ? fopen(path, "r") : NULL;
  int port, fields = 0;
  store->prefix[0] = '\0';
  if (file == NULL) return -1;
  if (fgets(line, sizeof(line), file) != NULL) {
    fields = sscanf(line, "%63[^:]:%d/%511s", host, &port, store->prefix);
  }
  fclose(file);
  if (fields < 2 || inet_aton(host, &at.sin_addr) == 0) return -1;
  at.sin_port = htons((in_port_t)port);
  do {
    store->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (store->fd < 0) return -1;
    if (connect(store->fd, (struct sockaddr *)&at, sizeof(at)) == 0) return 0;
    close(store->fd);
    pause_ms(100);
  } while (now_s() < until);
  return -1;
}

static int read_line(int fd, char *line, size_t size) {
  for (size_t at = 0; at + 1 < size; at++) {
    if (receive_all(fd, line + at, 1) != 0) return -1;
    if (at > 0 && line[at - 1] == '\r' && line[at] == '\n') {
      line[at - 1] = '\0';
      return 0;
    }
  }
  return -1;
}

static int command(struct store *store, const char *name, const void *value, size_t size) {
  char key[LINE_BYTES * 2], head[LINE_BYTES * 3];
  int key_size = snprintf(key, sizeof(key), "%s/%s", store->prefix, KEY);
  int head_size = snprintf(head, sizeof(head), "*%d\r\n$%zu\r\n%s\r\n$%d\r\n%s\r\n",
                           value != NULL ? 3 : 2, strlen(name), name, key_size, key);
  if (send_all(store->fd, head, (size_t)head_size) != 0) return -1;
  if (value == NULL) return 0;
  head_size = snprintf(head, sizeof(head), "$%zu\r\n", size);
  if (send_all(store->fd, head, (size_t)head_size) != 0) return -1;
  return send_all(store->fd, value, size) || send_all(store->fd, "\r\n", 2);
}

static int set_uid(struct store *store, const char *blob) {
  char line[LINE_BYTES];
  if (command(store, "SET", blob, UID_BYTES) != 0) return -1;
  return read_line(store->fd, line, sizeof(line)) == 0 && strcmp(line, "+OK") == 0 ? 0 : -1;
}

static int get_uid(struct store *store, char *blob, double until) {
  char line[LINE_BYTES], end[2];
  while (now_s() < until) {
    if (command(store, "GET", NULL, 0) != 0) return -1;
    if (read_line(store->fd, line, sizeof(line)) != 0 || line[0] != '$') return -1;
    if (atoi(line + 1) == UID_BYTES) {
      return receive_all(store->fd, blob, UID_BYTES) || receive_all(store->fd, end, 2);
    }
    if (strcmp(line, "$-1") != 0) return -1;
    pause_ms(10);
  }
  return -1;
}

/* -- what the checkpoint shim exports --------------------------------------------------------- */

int ncclCheckpointGetVersion(int *checkpoint, int *nccl) {
  const char *given = getenv("FAKE_NCCL_BUILT_FOR");
  *checkpoint = 100;
  *nccl = given != NULL ? atoi(given) : 23007;
  return SUCCESS;
}

int ncclCheckpointPrepare(void) {
  int64_t sum;
  if (my_rank < 0) return SUCCESS;
  while (told("prepare")) pause_ms(10);
  if (fakeNcclAllReduce(1, &sum) != SUCCESS || sum != rank_count) return SYSTEM_ERROR;
  for (int rank = 0; rank < rank_count; rank++) {
    if (peers[rank] > 0) close(peers[rank]);
    peers[rank] = 0;
  }
  end_traces();
  prepared = 1;
  return SUCCESS;
}

static struct in_addr own_address(void) {
  struct in_addr found = {.s_addr = htonl(INADDR_LOOPBACK)};
  struct ifaddrs *all = NULL;
  if (getifaddrs(&all) != 0) return found;
  for (struct ifaddrs *each = all; each != NULL; each = each->ifa_next) {
    if (each->ifa_addr == NULL || each->ifa_addr->sa_family != AF_INET) continue;
    if (each->ifa_flags & IFF_LOOPBACK) continue;
    found = ((struct sockaddr_in *)each->ifa_addr)->sin_addr;
    break;
  }
  freeifaddrs(all);
  return found;
}

static int meet(struct store *store, double until) {
  char blob[UID_BYTES] = {0};
  struct uid uid = {.magic = MAGIC, .address = own_address()};
  int listener;
  if (my_rank != 0) {
    if (get_uid(store, blob, until) != 0) return -1;
    memcpy(&uid, blob, sizeof(uid));
    if (memcmp(uid.magic, MAGIC, sizeof(MAGIC)) != 0) return -1;
    return join_root(uid.address, uid.port, until);
  }
  if ((listener = listen_at(&uid.port)) < 0) return -1;
  memcpy(blob, &uid, sizeof(uid));
  return set_uid(store, blob) || accept_all(listener);
}

int ncclCheckpointRestore(void) {
  struct store store;
  double until = now_s() + timeout_s();
  int failed;
  if (!prepared) return SUCCESS;
  prepared = 0;
  while (told("absent")) pause_ms(10);
  if (told("fails")) return INTERNAL_ERROR;
  if (open_store(&store, until) != 0) return INVALID_ARGUMENT;
  failed = meet(&store, until);
  close(store.fd);
  return failed || begin_traces() ? INTERNAL_ERROR : SUCCESS;
}
