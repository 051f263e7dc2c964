/*
 * SPANK plugin: sbatch, salloc and srun --elastic=MIN-MAX, --elastic-fungible, --elastic-heterogeneous,
 * --elastic-batch=MIN-MAX, --elastic-opportunistic=MIN-MAX[,auto], --elastic-cohost.
 *
 * Where the job is submitted, the plugin refuses impossible values. It puts a variable for each option into
 * the job's environment (FLEXO_ELASTIC, FLEXO_ELASTIC_FUNGIBLE and so on: `names` below). It also puts them
 * into the job control environment, where job_submit_elastic.lua finds them. Where the job
 * runs, the plugin sets the variables again, because --export=NONE removes them on the way. A job without the
 * options is not touched.
 *
 * An option is never taken from the environment. Slurm exports a job's SPANK options to what the job starts, so
 * that a plain sbatch inside an elastic job would become elastic too; see forget_inherited().
 */
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "range.h"

SPANK_PLUGIN(flexo, 1)

/* Prefix of the variables in which Slurm passes our options; it ends with the plugin's name. */
#define OPTION_VARIABLE "_SLURM_SPANK_OPTION_flexo_"

#define LINE_SIZE 512
#define VALUE_SIZE sizeof("999999999-999999999" FLEXO_AUTO)

enum { ELASTIC, FUNGIBLE, HETEROGENEOUS, BATCH, OPPORTUNISTIC, COHOST, OPTIONS };

static const struct {
	const char *variable;        /* for the job and for Lua */
	const char *option_variable; /* Slurm's own */
} names[OPTIONS] = {
	[ELASTIC] = { "FLEXO_ELASTIC", OPTION_VARIABLE "elastic" },
	[FUNGIBLE] = { "FLEXO_ELASTIC_FUNGIBLE", OPTION_VARIABLE "elastic_fungible" },
	[HETEROGENEOUS] = { "FLEXO_ELASTIC_HETEROGENEOUS", OPTION_VARIABLE "elastic_heterogeneous" },
	[BATCH] = { "FLEXO_ELASTIC_BATCH", OPTION_VARIABLE "elastic_batch" },
	[OPPORTUNISTIC] = { "FLEXO_ELASTIC_OPPORTUNISTIC", OPTION_VARIABLE "elastic_opportunistic" },
	[COHOST] = { "FLEXO_ELASTIC_COHOST", OPTION_VARIABLE "elastic_cohost" },
};

static int take_option(int val, const char *optarg, int remote);

static struct spank_option options[OPTIONS] = {
	[ELASTIC] = { .name = "elastic",
		      .arginfo = "MIN-MAX",
		      .usage = "let the job grow from MIN workers to MAX on idle GPUs; "
			       "the ordinary request (-n, GPUs) is that of MIN workers",
		      .has_arg = 1,
		      .val = ELASTIC,
		      .cb = take_option },
	[FUNGIBLE] = { .name = "elastic-fungible",
		       .arginfo = NULL,
		       .usage = "with --elastic: the workers may run on another GPU type in another run",
		       .has_arg = 0,
		       .val = FUNGIBLE,
		       .cb = take_option },
	[HETEROGENEOUS] = { .name = "elastic-heterogeneous",
			    .arginfo = NULL,
			    .usage = "with --elastic: the workers may be on several GPU types in the same run",
			    .has_arg = 0,
			    .val = HETEROGENEOUS,
			    .cb = take_option },
	[BATCH] = { .name = "elastic-batch",
		    .arginfo = "MIN-MAX",
		    .usage = "with --elastic: the global batch sizes that training accepts, in samples",
		    .has_arg = 1,
		    .val = BATCH,
		    .cb = take_option },
	[OPPORTUNISTIC] = { .name = "elastic-opportunistic",
			    .arginfo = "MIN-MAX[,auto]",
			    .usage = "let MIN to MAX workers run on GPUs that other jobs hold but do not use; the "
				     "job itself has one task without GPUs. auto: try idle GPUs first",
			    .has_arg = 1,
			    .val = OPPORTUNISTIC,
			    .cb = take_option },
	[COHOST] = { .name = "elastic-cohost",
		     .arginfo = NULL,
		     .usage = "let workers of opportunistic jobs use this job's GPUs while it does not",
		     .has_arg = 0,
		     .val = COHOST,
		     .cb = take_option },
};

/* The values of the options as the job will see them; "" for an option that was not given. */
static char values[OPTIONS][VALUE_SIZE];

/* The arguments in plugstack.conf. */
static uint32_t max_workers = FLEXO_NUMBER_MAX;
static char bad_argument[LINE_SIZE];

static void read_arguments(int ac, char *argv[])
{
	static const char key[] = "max_workers=";

	for (int i = 0; i < ac; i++) {
		if (strncmp(argv[i], key, strlen(key)) == 0 &&
		    flexo_number_parse(argv[i] + strlen(key), &max_workers))
			continue;
		snprintf(bad_argument, sizeof(bad_argument),
			 "the argument '%.64s' of this plugin in plugstack.conf is wrong; allowed is max_workers=N, "
			 "N from 1 to %u", argv[i], FLEXO_NUMBER_MAX);
	}
}

/* True in the commands that submit jobs (srun also starts steps), false in Slurm's daemons. */
static bool in_client(void)
{
	return spank_context() == S_CTX_ALLOCATOR || spank_context() == S_CTX_LOCAL;
}

static bool inside_job(void)
{
	return getenv("SLURM_JOB_ID") != NULL;
}

/* The name under which Slurm copies a variable of the job control environment into an ordinary one. */
static const char *handed_on(const char *variable)
{
	static char name[128];

	snprintf(name, sizeof(name), "SLURM_SPANK_%s", variable);
	return name;
}

/*
 * Removes the options of a surrounding elastic job from our environment. Otherwise Slurm would take them for
 * options of the job that is being submitted. srun in a job keeps FLEXO_ELASTIC: it starts a step, whose
 * workers need the variable.
 */
static void forget_inherited(spank_t spank)
{
	for (int i = 0; i < OPTIONS; i++) {
		unsetenv(names[i].option_variable);
		unsetenv(handed_on(names[i].option_variable));
		unsetenv(handed_on(names[i].variable));
		/* srun has copied these variables already */
		spank_job_control_unsetenv(spank, names[i].option_variable);
		spank_job_control_unsetenv(spank, names[i].variable);
		if (spank_context() == S_CTX_ALLOCATOR && inside_job())
			unsetenv(names[i].variable);
	}
}

/* Reads the value of an option that has one, and writes it to `value` (VALUE_SIZE) as the job will see it. */
static enum flexo_range_fault read_value(int option, const char *text, uint32_t limit, char *value)
{
	struct flexo_range range;
	bool automatic = false;
	enum flexo_range_fault fault;

	fault = option == OPPORTUNISTIC ? flexo_range_parse_auto(text, limit, &range, &automatic)
					: flexo_range_parse(text, limit, &range);
	if (fault == FLEXO_RANGE_OK)
		snprintf(value, VALUE_SIZE, "%u-%u%s", range.min, range.max, automatic ? FLEXO_AUTO : "");
	return fault;
}

/* Slurm's callback for a given option: before the job is submitted (remote is 0), and where the job runs. */
static int take_option(int val, const char *optarg, int remote)
{
	uint32_t limit = val != BATCH && !remote ? max_workers : FLEXO_NUMBER_MAX;
	enum flexo_range_fault fault;
	char line[LINE_SIZE];

	if (!remote && bad_argument[0] != '\0') {
		slurm_error("--%s: %s; please tell your administrator", options[val].name, bad_argument);
		return -1;
	}
	if (!remote && spank_context() == S_CTX_LOCAL && inside_job()) {
		slurm_error("--%s belongs to a job, not to a step in it; say it to sbatch or salloc",
			    options[val].name);
		return -1;
	}
	if (!options[val].has_arg) {
		strcpy(values[val], "1");
		return 0;
	}
	fault = read_value(val, optarg, limit, values[val]);
	if (fault != FLEXO_RANGE_OK) {
		flexo_range_explain(line, sizeof(line), options[val].name, optarg, limit, fault);
		slurm_error("%s%s", line, val == OPPORTUNISTIC ? ", or 2-8" FLEXO_AUTO : "");
		return -1;
	}
	return 0;
}

int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
	if (spank_context() == S_CTX_SLURMD) {
		read_arguments(ac, argv);
		if (bad_argument[0] != '\0')
			slurm_error("flexo: %s", bad_argument); /* once, in slurmd's log */
		return 0;
	}
	if (!in_client() && spank_context() != S_CTX_REMOTE)
		return 0;
	if (in_client()) {
		read_arguments(ac, argv);
		forget_inherited(spank);
	}
	for (int i = 0; i < OPTIONS; i++)
		if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS)
			slurm_error("flexo: Slurm did not accept the option --%s", options[i].name);
	return 0;
}

/* Puts an option's value where the job and Lua will find it. Called where the job is submitted. */
static int publish(spank_t spank, int option)
{
	if (setenv(names[option].variable, values[option], 1) != 0 ||
	    spank_job_control_setenv(spank, names[option].variable, values[option], 1) != ESPANK_SUCCESS) {
		slurm_error("flexo: cannot put %s into the job's environment", names[option].variable);
		return -1;
	}
	return 0;
}

static bool given(int option)
{
	return values[option][0] != '\0';
}

/*
 * Whether the options go together. The user hears of the first that do not. job_submit_elastic.lua checks the
 * same, because Slurm heeds the plugin's result only where plugstack.conf says "required".
 */
static bool options_agree(void)
{
	static const int needy[] = { FUNGIBLE, HETEROGENEOUS, BATCH };
	static const int excluded[] = { ELASTIC, FUNGIBLE, HETEROGENEOUS, COHOST };

	for (size_t i = 0; given(OPPORTUNISTIC) && i < sizeof(excluded) / sizeof(excluded[0]); i++)
		if (given(excluded[i])) {
			slurm_error("--%s and --%s exclude each other: an opportunistic job has no GPUs of its own",
				    options[OPPORTUNISTIC].name, options[excluded[i]].name);
			return false;
		}
	for (size_t i = 0; !given(ELASTIC) && i < sizeof(needy) / sizeof(needy[0]); i++)
		if (given(needy[i]) && !(needy[i] == BATCH && given(OPPORTUNISTIC))) {
			slurm_error("--%s needs --elastic=MIN-MAX beside it, such as --elastic=2-8",
				    options[needy[i]].name);
			return false;
		}
	return true;
}

static int publish_all(spank_t spank)
{
	int rc = options_agree() ? 0 : -1;

	for (int i = 0; i < OPTIONS; i++) {
		if (given(i) && publish(spank, i) != 0)
			rc = -1;
	}
	return rc;
}

/*
 * Sets the variables again where the job runs. --export=NONE lets only SLURM_* through, which includes the
 * names of handed_on(). All names but ours are then removed, so that jobs that this job submits cannot
 * inherit the options.
 */
static void arrive(spank_t spank)
{
	char value[VALUE_SIZE];

	for (int i = 0; i < OPTIONS; i++) {
		if (spank_getenv(spank, handed_on(names[i].variable), value, sizeof(value)) == ESPANK_SUCCESS &&
		    !given(i)) {
			if (options[i].has_arg)
				read_value(i, value, FLEXO_NUMBER_MAX, values[i]); /* what is wrong stays out */
			else
				strcpy(values[i], "1");
		}
		if (given(i))
			spank_setenv(spank, names[i].variable, values[i], 1);
		spank_unsetenv(spank, names[i].option_variable);
		spank_unsetenv(spank, handed_on(names[i].option_variable));
		spank_unsetenv(spank, handed_on(names[i].variable));
	}
}

int slurm_spank_init_post_opt(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	if (in_client())
		return publish_all(spank);
	if (spank_context() == S_CTX_REMOTE)
		arrive(spank); /* nothing here may keep a job from starting */
	return 0;
}
