// A libcuda.so.1 with the calls that save and restore the device state of a process, by pid.
//
// Order and results are those of the CUDA driver API's documentation: a call in the wrong state is
// ILLEGAL_STATE, a lock that times out leaves the process RUNNING and is NOT_READY, and what waits for
// a process that stands still waits for ever.
//
//   FAKE_GPU_PLACE    the folder of this node's devices, where restored processes find them
//   FAKE_GPU_FAULT    a file with lines `CALL hang`, `CALL crash` (of the target) or `CALL NUMBER` (a
//                     result), for lock, checkpoint, restore, unlock and state
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"
#include "said.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, OPERATING_SYSTEM = 304, ILLEGAL_STATE = 401,
       NOT_FOUND = 500, NOT_READY = 600 };
enum { RUNNING = 0, LOCKED = 1, CHECKPOINTED = 2, FAILED = 3 };

struct lock_arguments { unsigned int timeout_ms; };
struct pair { uint8_t old_uuid[16], new_uuid[16]; };
struct restore_arguments { struct pair *pairs; unsigned int count; };

struct target { int pid, memory; off_t at; };

static void rest(void)
{
	struct timespec moment = {0, 1000000};
	nanosleep(&moment, NULL);
}

static long long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static int read_field(struct target *t, size_t offset, void *into, size_t size)
{
	return pread(t->memory, into, size, t->at + (off_t)offset) == (ssize_t)size ? 0 : -1;
}

static int write_field(struct target *t, size_t offset, const void *from, size_t size)
{
	return pwrite(t->memory, from, size, t->at + (off_t)offset) == (ssize_t)size ? 0 : -1;
}

#define FIELD(name) offsetof(struct page, name)

static uint32_t word(struct target *t, size_t offset)
{
	uint32_t value = 0;
	return read_field(t, offset, &value, sizeof value) ? UINT32_MAX : value;
}

static void put_word(struct target *t, size_t offset, uint32_t value)
{
	write_field(t, offset, &value, sizeof value);
}

static int find(int pid, struct target *t)
{
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	FILE *maps = fopen(path, "r");
	if (!maps)
		return INVALID_VALUE;
	unsigned long start = 0;
	while (fgets(line, sizeof line, maps))
		if (strstr(line, PAGE_NAME)) {
			start = strtoul(line, NULL, 16);
			break;
		}
	fclose(maps);
	if (!start)
		return NOT_INITIALIZED;
	snprintf(path, sizeof path, "/proc/%d/mem", pid);
	*t = (struct target){pid, open(path, O_RDWR | O_CLOEXEC), (off_t)start};
	if (t->memory < 0)
		return OPERATING_SYSTEM;
	uint64_t magic = 0;
	if (read_field(t, FIELD(magic), &magic, sizeof magic) || magic != PAGE_MAGIC) {
		close(t->memory);
		return NOT_INITIALIZED;
	}
	return SUCCESS;
}

static int fault(const char *call, struct target *t)
{
	const char *path = getenv("FAKE_GPU_FAULT");
	FILE *file = path ? fopen(path, "r") : NULL;
	char name[32], what[32];
	int result = SUCCESS;
	while (file && fscanf(file, "%31s %31s", name, what) == 2) {
		if (strcmp(name, call))
			continue;
		if (!strcmp(what, "hang"))
			for (;;)
				pause();
		if (!strcmp(what, "crash")) {
			kill(t->pid, SIGSEGV);
			result = OPERATING_SYSTEM;
		} else {
			result = atoi(what);
		}
	}
	if (file)
		fclose(file);
	return result;
}

// Finds the process, lets planted faults happen, and looks whether it stands where the call needs it.
static int begin(const char *call, int pid, uint32_t needs, struct target *t)
{
	int result = find(pid, t);
	if (result)
		return result;
	result = fault(call, t);
	if (!result && word(t, FIELD(state)) != needs)
		result = ILLEGAL_STATE;
	if (result)
		close(t->memory);
	return result;
}

// The thread in the process does it, if the process can run; whoever waits for one that cannot waits on.
static int carry_out(struct target *t, uint32_t command, uint32_t becomes)
{
	put_word(t, FIELD(command), command);
	for (;;) {
		uint32_t left = word(t, FIELD(command));
		if (left == UINT32_MAX)
			return OPERATING_SYSTEM;
		if (left == COMMAND_NONE)
			break;
		rest();
	}
	int result = (int)word(t, FIELD(result));
	if (!result)
		put_word(t, FIELD(state), becomes);
	return result;
}

int cuInit(unsigned int flags) { return flags ? INVALID_VALUE : SUCCESS; }

int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return SUCCESS;
}

int cuGetErrorString(int code, const char **words)
{
	for (size_t at = 0; at < sizeof WORDS / sizeof *WORDS; at++)
		if (WORDS[at].code == code) {
			*words = WORDS[at].words;
			return SUCCESS;
		}
	*words = NULL;
	return INVALID_VALUE;
}

int cuCheckpointProcessGetState(int pid, int *state)
{
	struct target t;
	int result = find(pid, &t);
	if (result)
		return result;
	result = fault("state", &t);
	*state = (int)word(&t, FIELD(state));
	close(t.memory);
	return result;
}

int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread)
{
	struct target t;
	int result = find(pid, &t);
	if (result)
		return result;
	*thread = (int)word(&t, FIELD(thread));
	close(t.memory);
	return SUCCESS;
}

int cuCheckpointProcessLock(int pid, struct lock_arguments *arguments)
{
	struct target t;
	int result = begin("lock", pid, RUNNING, &t);
	if (result)
		return result;
	long long until = arguments && arguments->timeout_ms ? now_ms() + arguments->timeout_ms : 0;
	put_word(&t, FIELD(lock), 1);
	while (word(&t, FIELD(outstanding))) {
		if (until && now_ms() >= until) {
			put_word(&t, FIELD(lock), 0);
			close(t.memory);
			return NOT_READY;
		}
		rest();
	}
	put_word(&t, FIELD(state), LOCKED);
	close(t.memory);
	return SUCCESS;
}

int cuCheckpointProcessCheckpoint(int pid, void *arguments)
{
	(void)arguments;
	struct target t;
	int result = begin("checkpoint", pid, LOCKED, &t);
	if (result)
		return result;
	result = carry_out(&t, COMMAND_SAVE, CHECKPOINTED);
	if (result)
		put_word(&t, FIELD(state), FAILED);
	close(t.memory);
	return result;
}

int cuCheckpointProcessRestore(int pid, struct restore_arguments *arguments)
{
	struct target t;
	int result = begin("restore", pid, CHECKPOINTED, &t);
	if (result)
		return result;
	struct page page = {0};
	const char *place = getenv("FAKE_GPU_PLACE");
	snprintf(page.place, sizeof page.place, "%s", place ? place : "");
	uint32_t count = arguments ? arguments->count : 0;
	if (count > PAIRS_MAX)
		count = PAIRS_MAX;
	for (uint32_t at = 0; at < count; at++) {
		memcpy(page.pairs[at][0], arguments->pairs[at].old_uuid, 16);
		memcpy(page.pairs[at][1], arguments->pairs[at].new_uuid, 16);
	}
	write_field(&t, FIELD(place), page.place, sizeof page.place);
	put_word(&t, FIELD(pairs_count), count);
	write_field(&t, FIELD(pairs), page.pairs, sizeof page.pairs);
	// One that fails stays CHECKPOINTED; what it lacked it will not get (cuda-checkpoint issue 44).
	result = carry_out(&t, COMMAND_RESTORE, LOCKED);
	close(t.memory);
	return result;
}

int cuCheckpointProcessUnlock(int pid, void *arguments)
{
	(void)arguments;
	struct target t;
	int result = begin("unlock", pid, LOCKED, &t);
	if (result)
		return result;
	put_word(&t, FIELD(state), RUNNING);
	put_word(&t, FIELD(lock), 0);
	close(t.memory);
	return SUCCESS;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
	(void)version, (void)flags;
	*function = dlsym(RTLD_DEFAULT, symbol);
	if (!*function) {
		void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
		*function = self ? dlsym(self, symbol) : NULL;
	}
	if (status)
		*status = *function ? 0 : 1;
	return *function ? SUCCESS : NOT_FOUND;
}

int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
