// The page that a rank shares with whoever drives its device; device.py has the same numbers.
#ifndef FAKE_GPU_LAYOUT_H
#define FAKE_GPU_LAYOUT_H
#include <stdint.h>

#define PAGE_NAME "/memfd:fake-gpu"
#define PAGE_MAGIC 0x00a11570f0000002ULL
#define PAIRS_MAX 16

enum command {
	COMMAND_NONE = 0,
	COMMAND_LOCK = 1,
	COMMAND_SAVE = 2,
	COMMAND_RESTORE = 3,
	COMMAND_UNLOCK = 4,
	COMMAND_SAVE_NOTHING = 5,  // as SAVE, but the memory is gone
	COMMAND_SAVE_STALE = 6,    // as SAVE, but the device stays open
};

struct page {
	uint64_t magic;
	uint32_t state;        // CUprocessState
	uint32_t lock;         // 1: no new work
	uint32_t outstanding;  // work that was submitted and is not done
	uint32_t command;      // enum command; the rank puts it back to 0 when it is done
	uint32_t result;       // CUresult of the last command
	uint32_t thread;       // id of the thread that carries commands out
	uint32_t timeout_ms;   // of LOCK; 0: none
	uint32_t stranded;     // 1: a restore found no room
	char place[256];       // folder of the devices to use
	uint32_t pairs_count;
	uint32_t padding;
	uint8_t pairs[PAIRS_MAX][2][16];  // UUID at the checkpoint, UUID now
};
#endif
