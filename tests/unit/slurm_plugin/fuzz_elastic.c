/*
 * Fuzzes slurm_plugin/spank_elastic.c and range.c under the sanitizers: `make -C slurm_plugin fuzz FUZZ_S=600`.
 *
 * One input is one life of the plugin: where it runs, its arguments, options and a job's environment, all at random.
 * Built with clang it is a target of libFuzzer; with another compiler it makes up inputs itself, from the same seeds.
 */
#include "pretended_spank.h"

#include <stdint.h>
#include <time.h>
#include <unistd.h>

#define PIECES 11 /* two arguments, a value for each option, three of the environment */
#define PIECE_LENGTH 300
#define CHOICES 3

static void demand(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "VIOLATED: %s\n", what);
	abort();
}

static bool is_printable(const char *text)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~')
			return false;
	return true;
}

/* "" or "1" or MIN-MAX or MIN-MAX,auto: all that may leave the plugin, whatever came in. */
static void demand_clean(const char *value)
{
	struct flexo_range range;
	bool automatic;

	if (value && *value != '\0' && strcmp(value, "1") != 0)
		demand(flexo_range_parse_auto(value, FLEXO_NUMBER_MAX, &range, &automatic) == FLEXO_RANGE_OK,
		       "a value is a range");
}

static void demand_clean_end(void)
{
	for (int i = 0; i < OPTIONS; i++) {
		demand_clean(values[i]);
		demand_clean(value_of(&of_job_control, names[i].variable));
		if (where == S_CTX_REMOTE) {
			demand_clean(value_of(&of_job, names[i].variable));
			demand(!value_of(&of_job, handed_on(names[i].variable)), "nothing is handed on twice");
		}
		unsetenv(names[i].variable);
	}
	demand(is_printable(said) || where == S_CTX_SLURMD || strstr(said, "plugstack.conf"),
	       "users are told nothing that a terminal obeys");
}

static void live(char pieces[PIECES][PIECE_LENGTH], unsigned choices)
{
	static const spank_context_t contexts[] = { S_CTX_ALLOCATOR, S_CTX_LOCAL, S_CTX_REMOTE, S_CTX_SLURMD };
	char *arguments[] = { pieces[0], pieces[1] };
	int remote = (choices >> 2) & 1;

	begin(contexts[choices & 3]);
	if (choices & 8)
		setenv("SLURM_JOB_ID", pieces[10], 1);
	else
		unsetenv("SLURM_JOB_ID");
	if (where == S_CTX_REMOTE)
		for (int i = 0; i < OPTIONS; i++) {
			set(&of_job, handed_on(names[i].variable), pieces[8]);
			set(&of_job, names[i].option_variable, pieces[9]);
		}
	slurm_spank_init(NULL, (choices >> 4) % 3, arguments);
	for (int i = 0; i < OPTIONS; i++)
		if (choices & (64u << i))
			say_option(i, choices & (4096u << i) ? NULL : pieces[2 + i], remote);
	slurm_spank_init_post_opt(NULL, 0, NULL);
	demand_clean_end();
}

/* Three bytes of choices, and pieces with a newline between. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char pieces[PIECES][PIECE_LENGTH];
	size_t piece = 0, length = 0;

	memset(pieces, 0, sizeof(pieces));
	if (size < CHOICES)
		return 0;
	for (size_t i = CHOICES; i < size && piece < PIECES; i++) {
		if (data[i] == '\n') {
			piece++;
			length = 0;
		} else if (length < PIECE_LENGTH - 1) {
			pieces[piece][length++] = (char)data[i];
		}
	}
	live(pieces, data[0] | (unsigned)data[1] << 8 | (unsigned)data[2] << 16);
	return 0;
}

#ifndef FLEXO_LIBFUZZER

static const char *const seeds[] = {
	"max_workers=64\nmax_workers=8\n2-8\n\n\n32-256\n2-8,auto\n\n2-8\n2-8\n7",
	"max_workers=999999999\n\n999999999-999999999\nx\ny\n1-1\n999999999-999999999,auto\nz\n999999999-999999999\n1-1\n",
	"max_workers=\nmax_workers\n1-18446744073709551618\n\n\n02-08\n1000000000-1,auto\n\n2-8,auto,auto\n-\n",
	"%s%n\n\x1b[2J\n$(reboot)-8\n`id`\n\n\xd9\xa2-\xd9\xa8\n,auto\n\n;\n'\n\"",
};
#define INPUT_LENGTH 1024

static uint64_t state;

static uint64_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* A seed with a few bytes overwritten, a stretch repeated, and maybe cut short. */
static size_t make_input(uint8_t *input)
{
	const char *seed = seeds[next_random() % (sizeof(seeds) / sizeof(seeds[0]))];
	size_t size = CHOICES + strlen(seed);

	input[0] = (uint8_t)next_random();
	input[1] = (uint8_t)next_random();
	input[2] = (uint8_t)next_random();
	memcpy(input + CHOICES, seed, size - CHOICES);
	for (uint64_t changes = next_random() % 12; changes > 0; changes--)
		input[CHOICES + next_random() % (size - CHOICES)] =
			next_random() % 3 ? (uint8_t)"0123456789-\n +,e"[next_random() % 16] : (uint8_t)next_random();
	if (next_random() % 4 == 0) {
		size_t from = CHOICES + next_random() % (size - CHOICES), to = size + next_random() % 512;

		for (; size < to && size < INPUT_LENGTH; size++)
			input[size] = input[from++];
	}
	return next_random() % 4 ? size : CHOICES + next_random() % (size - CHOICES + 1);
}

int main(int argc, char *argv[])
{
	uint8_t input[INPUT_LENGTH];
	double seconds = argc > 1 ? strtod(argv[1], NULL) : 10;
	unsigned long runs = 0;
	time_t end = time(NULL) + (time_t)seconds;

	state = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL) << 20 | (uint64_t)getpid();
	printf("fuzz_elastic: seed %#llx\n", (unsigned long long)state);
	fflush(stdout);
	for (; time(NULL) < end; runs++)
		LLVMFuzzerTestOneInput(input, make_input(input));
	printf("fuzz_elastic: %lu lives of the plugin in %.0f s, nothing violated\n", runs, seconds);
	return runs > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
