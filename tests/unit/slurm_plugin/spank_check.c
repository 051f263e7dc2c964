/*
 * Checks slurm_plugin/spank_elastic.c against a pretended Slurm, under the sanitizers (slurm_plugin/Makefile, `make check`).
 */
#include "pretended_spank.h"

static int failures;

static void check(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "FAILED: %s (said last: '%s')\n", what, said);
	failures++;
}

static bool is(const char *value, const char *expected)
{
	return value && strcmp(value, expected) == 0;
}

static void check_submission(void)
{
	begin(S_CTX_ALLOCATOR);
	check(slurm_spank_init(NULL, 0, NULL) == 0 && registered_count == OPTIONS, "sbatch has all options");
	check(say_option(ELASTIC, "02-08", 0) == 0, "a range is taken");
	check(say_option(FUNGIBLE, NULL, 0) == 0, "so is an option without a value");
	check(say_option(HETEROGENEOUS, NULL, 0) == 0, "and the other one like it");
	check(slurm_spank_init_post_opt(NULL, 0, NULL) == 0, "the job is submitted");
	check(is(value_of(&of_job_control, "FLEXO_ELASTIC"), "2-8"), "Lua finds the range");
	check(is(value_of(&of_job_control, "FLEXO_ELASTIC_FUNGIBLE"), "1"), "and the other option");
	check(is(value_of(&of_job_control, "FLEXO_ELASTIC_HETEROGENEOUS"), "1"), "and the third");
	check(is(getenv("FLEXO_ELASTIC"), "2-8"), "the job's environment has it");
	unsetenv("FLEXO_ELASTIC");
	unsetenv("FLEXO_ELASTIC_FUNGIBLE");
	unsetenv("FLEXO_ELASTIC_HETEROGENEOUS");
}

static void check_refusals(void)
{
	char wrong[] = "max_workers=none", limit[] = "max_workers=8";
	char *arguments[] = { wrong }, *limited[] = { limit };

	begin(S_CTX_ALLOCATOR);
	slurm_spank_init(NULL, 1, limited);
	check(say_option(ELASTIC, "2-9", 0) < 0 && strstr(said, "limit"), "the site's limit is kept");
	check(say_option(ELASTIC, NULL, 0) < 0, "a missing value is refused");
	begin(S_CTX_ALLOCATOR);
	slurm_spank_init(NULL, 0, NULL);
	check(say_option(BATCH, "2-9", 0) == 0, "a range of batches is taken");
	check(slurm_spank_init_post_opt(NULL, 0, NULL) < 0 && strstr(said, "needs --elastic"), "not alone, though");
	begin(S_CTX_ALLOCATOR);
	slurm_spank_init(NULL, 1, arguments);
	check(say_option(ELASTIC, "2-8", 0) < 0 && strstr(said, "plugstack.conf"), "a wrong argument is named");
	begin(S_CTX_SLURMD);
	slurm_spank_init(NULL, 1, arguments);
	check(said_count == 1, "slurmd's log has it too");
	unsetenv("FLEXO_ELASTIC_BATCH");
}

/* What the command says to options of which each is good by itself; what it published is taken back. */
static int submit_with(const int *given_options, size_t count, const char *range)
{
	int rc;

	begin(S_CTX_ALLOCATOR);
	slurm_spank_init(NULL, 0, NULL);
	for (size_t i = 0; i < count; i++)
		check(say_option(given_options[i], range, 0) == 0, "each option is good by itself");
	rc = slurm_spank_init_post_opt(NULL, 0, NULL);
	for (int i = 0; i < OPTIONS; i++)
		unsetenv(names[i].variable);
	return rc;
}

static void check_sharing(void)
{
	static const int excluded[] = { ELASTIC, FUNGIBLE, HETEROGENEOUS, COHOST };
	int pair[2] = { OPPORTUNISTIC, OPPORTUNISTIC };

	check(submit_with(pair, 1, "02-8,auto") == 0, "an opportunistic job needs no --elastic");
	check(is(value_of(&of_job_control, "FLEXO_ELASTIC_OPPORTUNISTIC"), "2-8,auto"), "Lua finds range and word");
	check(submit_with(pair, 1, "2-8") == 0, "nor does it need the word");
	check(is(value_of(&of_job_control, "FLEXO_ELASTIC_OPPORTUNISTIC"), "2-8"), "which then is not there");
	for (size_t i = 0; i < sizeof(excluded) / sizeof(excluded[0]); i++) {
		pair[1] = excluded[i];
		check(submit_with(pair, 2, "2-8") < 0 && strstr(said, "exclude"), "it has no GPUs of its own");
	}
	pair[1] = BATCH;
	check(submit_with(pair, 2, "2-8") == 0, "it may name its batches");
	pair[0] = COHOST;
	check(submit_with(pair, 1, NULL) == 0, "a job consents without being elastic");
	check(is(value_of(&of_job_control, "FLEXO_ELASTIC_COHOST"), "1"), "and Lua finds that");
	check(submit_with(pair, 2, "2-8") < 0, "batches need a job that can grow");
	pair[1] = ELASTIC;
	check(submit_with(pair, 2, "2-8") == 0, "an elastic job consents as well");
	begin(S_CTX_ALLOCATOR);
	slurm_spank_init(NULL, 0, NULL);
	check(say_option(OPPORTUNISTIC, "2-8,automatic", 0) < 0 && strstr(said, "2-8,auto"), "no other word is taken");
	check(say_option(OPPORTUNISTIC, ",auto", 0) < 0, "nor the word alone");
	check(say_option(ELASTIC, "2-8,auto", 0) < 0, "and --elastic takes no word");
}

static void check_arrival(void)
{
	char longer[200];

	begin(S_CTX_REMOTE);
	slurm_spank_init(NULL, 0, NULL);
	set(&of_job, "SLURM_SPANK_FLEXO_ELASTIC", "2-8");
	set(&of_job, "_SLURM_SPANK_OPTION_flexo_elastic", "2-8");
	check(slurm_spank_init_post_opt(NULL, 0, NULL) == 0, "a job starts");
	check(is(value_of(&of_job, "FLEXO_ELASTIC"), "2-8"), "what was handed on arrives");
	check(!value_of(&of_job, "SLURM_SPANK_FLEXO_ELASTIC"), "and is not handed on again");
	check(!value_of(&of_job, "_SLURM_SPANK_OPTION_flexo_elastic"), "neither is the option");
	begin(S_CTX_REMOTE);
	slurm_spank_init(NULL, 0, NULL);
	set(&of_job, "SLURM_SPANK_FLEXO_ELASTIC_OPPORTUNISTIC", "999999999-999999999,auto");
	set(&of_job, "SLURM_SPANK_FLEXO_ELASTIC_COHOST", "1");
	slurm_spank_init_post_opt(NULL, 0, NULL);
	check(is(value_of(&of_job, "FLEXO_ELASTIC_OPPORTUNISTIC"), "999999999-999999999,auto"), "the longest value fits");
	check(is(value_of(&of_job, "FLEXO_ELASTIC_COHOST"), "1"), "consent arrives");
	memset(longer, '9', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	begin(S_CTX_REMOTE);
	slurm_spank_init(NULL, 0, NULL);
	set(&of_job, "SLURM_SPANK_FLEXO_ELASTIC", longer);
	set(&of_job, "SLURM_SPANK_FLEXO_ELASTIC_FUNGIBLE", longer);
	set(&of_job, "SLURM_SPANK_FLEXO_ELASTIC_HETEROGENEOUS", "1;reboot");
	set(&of_job, "SLURM_SPANK_FLEXO_ELASTIC_BATCH", "1-2;reboot");
	check(slurm_spank_init_post_opt(NULL, 0, NULL) == 0, "a user's own nonsense keeps no job from starting");
	check(!value_of(&of_job, "FLEXO_ELASTIC") && !value_of(&of_job, "FLEXO_ELASTIC_BATCH"), "and does not arrive");
	check(is(value_of(&of_job, "FLEXO_ELASTIC_HETEROGENEOUS"), "1"), "nor does a value where none is taken");
}

int main(void)
{
	check_submission();
	check_refusals();
	check_sharing();
	check_arrival();
	if (failures == 0)
		puts("spank_elastic.c: all checks passed");
	return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
