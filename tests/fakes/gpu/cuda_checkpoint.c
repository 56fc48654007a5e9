// The program in front of libcuda.so.1, with the options, words and exit statuses of NVIDIA's.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "said.h"

struct lock_arguments { unsigned int timeout_ms; char rest[60]; };
struct pair { uint8_t old_uuid[16], new_uuid[16]; };
struct restore_arguments { struct pair *pairs; unsigned int count; char rest[52]; };

extern int fakeCudaCase(void);
extern int cuInit(unsigned int);
extern int cuDriverGetVersion(int *);
extern int cuGetErrorString(int, const char **);
extern int cuCheckpointProcessGetState(int, int *);
extern int cuCheckpointProcessGetRestoreThreadId(int, int *);
extern int cuCheckpointProcessLock(int, struct lock_arguments *);
extern int cuCheckpointProcessCheckpoint(int, void *);
extern int cuCheckpointProcessRestore(int, struct restore_arguments *);
extern int cuCheckpointProcessUnlock(int, void *);

static const char *STATES[] = {"running", "locked", "checkpointed", "failed"};

static int uuid(const char *text, uint8_t into[16])
{
	int at = 0;
	if (!strncmp(text, "GPU-", 4))
		text += 4;
	for (; *text && *text != '=' && *text != ',' && at < 32; text++) {
		const char *digits = "0123456789abcdef", *found = strchr(digits, *text | 32);
		if (*text == '-')
			continue;
		if (!found)
			return -1;
		into[at / 2] = (uint8_t)(into[at / 2] << 4 | (found - digits));
		at++;
	}
	return at == 32 ? 0 : -1;
}

static unsigned int pairs_of(char *text, struct pair *pairs, unsigned int most)
{
	unsigned int count = 0;
	for (char *each = strtok(text, ","); each && count < most; each = strtok(NULL, ",")) {
		char *middle = strchr(each, '=');
		if (!middle || uuid(each, pairs[count].old_uuid) || uuid(middle + 1, pairs[count].new_uuid))
			return most + 1;
		count++;
	}
	return count;
}

static const int OLDEST = 12040;  // driver 550

struct asked {
	const char *action;
	char *map;
	int pid;
	struct lock_arguments lock;
};

static void print_for(FILE *to, const char *text, int pid)
{
	for (const char *at; (at = strstr(text, "{pid}")); text = at + strlen("{pid}"))
		fprintf(to, "%.*s%d", (int)(at - text), text, pid);
	fputs(text, to);
}

static int say(int which, int pid)
{
	print_for(stdout, CASES[which].out, pid);
	print_for(stderr, CASES[which].err, pid);
	return CASES[which].status;
}

static const char *words_of(int code)
{
	const char *words = NULL;
	cuGetErrorString(code, &words);
	return words ? words : "unknown error";
}

static int failed(const char *action, int pid, int code)
{
	if (fakeCudaCase() >= 0)
		return say(fakeCudaCase(), pid);
	fprintf(stderr, "Could not %s on process ID %d: \"%s\"\n", action, pid, words_of(code));
	return code;
}

static int get_state(int pid)
{
	int state = 0, code = cuCheckpointProcessGetState(pid, &state);
	if (code || fakeCudaCase() >= 0)
		return failed("get state", pid, code);
	puts(state >= 0 && state < 4 ? STATES[state] : "unknown");
	return 0;
}

static int get_restore_thread(int pid)
{
	int thread = 0, code = cuCheckpointProcessGetRestoreThreadId(pid, &thread);
	if (fakeCudaCase() >= 0)
		return say(fakeCudaCase(), pid);
	if (code)
		return fprintf(stderr, "Could not find restore thread for process ID %d\n", pid), 1;
	return printf("%d\n", thread), 0;
}

static int restore(int pid, char *map)
{
	struct pair pairs[16];
	memset(pairs, 0, sizeof pairs);
	struct restore_arguments arguments = {pairs, map ? pairs_of(map, pairs, 16) : 0, {0}};
	return arguments.count > 16 ? 1 : cuCheckpointProcessRestore(pid, &arguments);
}

static int toggle(int pid)
{
	struct lock_arguments lock = {0};
	int state = 0, code = cuCheckpointProcessGetState(pid, &state);
	if (!code && state == 0)
		code = (code = cuCheckpointProcessLock(pid, &lock)) ? code : cuCheckpointProcessCheckpoint(pid, NULL);
	else if (!code && state == 2)
		code = (code = restore(pid, NULL)) ? code : cuCheckpointProcessUnlock(pid, NULL);
	else if (!code)
		code = 401;
	if (code)
		fprintf(stderr, "Error toggling CUDA in process ID %d: \"%s\"\n", pid, words_of(code));
	return code;
}

static int launch(char **program)
{
	char job[64];
	int file = memfd_create("cuda-checkpoint-job", 0);
	snprintf(job, sizeof job, "/proc/self/fd/%d", file);
	if (file < 0 || !*program || setenv("CUDA_CHECKPOINT_JOB_FILE", job, 1))
		return fputs(HELP, stderr), 1;
	execvp(*program, program);
	return perror(*program), 127;
}

static int is(const char *word, const char *name, const char *letter)
{
	return !strcmp(word, name) || !strcmp(word, letter);
}

// Reads the words; 0 for those that it does not understand.
static int parse(int argc, char **argv, struct asked *asked)
{
	for (int at = 1; at < argc; at++) {
		const char *word = argv[at], *alone = !strcmp(word, "--get-state") ? "get-state"
			: !strcmp(word, "--get-restore-tid") ? "get-restore-tid"
			: !strcmp(word, "--toggle") ? "toggle" : NULL;
		if (alone)
			asked->action = alone;
		else if (at + 1 == argc)
			return 0;
		else if (!strcmp(word, "--action"))
			asked->action = argv[++at];
		else if (is(word, "--pid", "-p"))
			asked->pid = atoi(argv[++at]);
		else if (is(word, "--timeout", "-t"))
			asked->lock.timeout_ms = (unsigned int)atoi(argv[++at]);
		else if (is(word, "--device-map", "-d"))
			asked->map = argv[++at];
		else
			return 0;
	}
	return asked->action && asked->pid > 0;
}

int main(int argc, char **argv)
{
	struct asked asked = {0};
	int version = 0, code;
	if (argc > 1 && is(argv[1], "--help", "-h"))
		return fputs(HELP, stdout), 0;
	if (argc > 1 && is(argv[1], "--launch-job", "-j"))
		return launch(argv + 2);
	if (!parse(argc, argv, &asked))
		return fputs(HELP, stderr), 1;
	if (cuDriverGetVersion(&version) || version < OLDEST)
		return say(INSUFFICIENT_DRIVER, asked.pid);
	if ((code = cuInit(0)) || fakeCudaCase() >= 0)
		return fakeCudaCase() >= 0 ? say(fakeCudaCase(), asked.pid)
			: (fprintf(stderr, "Error initializing CUDA: \"%s\"\n", words_of(code)), code);
	if (!strcmp(asked.action, "get-state"))
		return get_state(asked.pid);
	if (!strcmp(asked.action, "get-restore-tid"))
		return get_restore_thread(asked.pid);
	if (!strcmp(asked.action, "toggle"))
		return toggle(asked.pid);
	if (!strcmp(asked.action, "lock"))
		code = cuCheckpointProcessLock(asked.pid, &asked.lock);
	else if (!strcmp(asked.action, "checkpoint"))
		code = cuCheckpointProcessCheckpoint(asked.pid, NULL);
	else if (!strcmp(asked.action, "unlock"))
		code = cuCheckpointProcessUnlock(asked.pid, NULL);
	else if (!strcmp(asked.action, "restore"))
		code = restore(asked.pid, asked.map);
	else
		return fputs(HELP, stderr), 1;
	return code || fakeCudaCase() >= 0 ? failed(asked.action, asked.pid, code) : 0;
}
