// A plugin as CRIU's CUDA plugin is one, by name: it puts itself down in the inventory and does nothing.
#define VERSION (0 << 16 | 2 << 8 | 0)
enum { HOOKS = 13, DUMP = 0 };

struct description {
	const char *name;
	int (*init)(int stage);
	void (*exit)(int stage, int result);
	unsigned int version, hooks_count;
	void *hooks[HOOKS];
};

extern int add_inventory_plugin(const char *name); // CRIU's own

static int init(int stage)
{
	return stage == DUMP ? add_inventory_plugin("cuda_plugin") : 0;
}

static void end(int stage, int result)
{
	(void)stage;
	(void)result;
}

struct description CR_PLUGIN_DESC = {"cuda_plugin", init, end, VERSION, HOOKS, {0}};
