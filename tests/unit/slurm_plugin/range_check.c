/*
 * Checks slurm_plugin/range.c without Slurm, built with the sanitizers (slurm_plugin/Makefile, `make check`).
 *
 * With arguments, LIMIT VALUE..., it prints for each value the range read, or why it is refused: for comparison with
 * the other two readers of the same ranges.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "range.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static int failures;

static void check(bool holds, const char *value, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "FAILED: '%s': %s\n", value, what);
	failures++;
}

static const struct {
	const char *value;
	uint32_t min, max;
} accepted[] = {
	{ "1-1", 1, 1 },
	{ "2-8", 2, 8 },
	{ "8-8", 8, 8 },
	{ "02-08", 2, 8 },
	{ "1-999999999", 1, 999999999 },
	{ "999999999-999999999", 999999999, 999999999 },
};

static const struct {
	const char *value;
	enum flexo_range_fault fault;
} refused[] = {
	{ "", FLEXO_RANGE_EMPTY },
	{ "8-2", FLEXO_RANGE_REVERSED },
	{ "0-2", FLEXO_RANGE_ZERO },
	{ "0-0", FLEXO_RANGE_ZERO },
	{ "000-2", FLEXO_RANGE_ZERO },
	{ "2", FLEXO_RANGE_SHAPE },
	{ "-", FLEXO_RANGE_SHAPE },
	{ "2-", FLEXO_RANGE_SHAPE },
	{ "-2", FLEXO_RANGE_SHAPE },
	{ "2--8", FLEXO_RANGE_SHAPE },
	{ "2-8-9", FLEXO_RANGE_SHAPE },
	{ "+2-8", FLEXO_RANGE_SHAPE },
	{ "2-+8", FLEXO_RANGE_SHAPE },
	{ "-2-8", FLEXO_RANGE_SHAPE },
	{ " 2-8", FLEXO_RANGE_SHAPE },
	{ "2 -8", FLEXO_RANGE_SHAPE },
	{ "2- 8", FLEXO_RANGE_SHAPE },
	{ "2-8 ", FLEXO_RANGE_SHAPE },
	{ "2-8\n", FLEXO_RANGE_SHAPE },
	{ "2-8x", FLEXO_RANGE_SHAPE },
	{ "0x2-0x8", FLEXO_RANGE_SHAPE },
	{ "1e1-2e1", FLEXO_RANGE_SHAPE },
	{ "2.0-8.0", FLEXO_RANGE_SHAPE },
	{ "two-eight", FLEXO_RANGE_SHAPE },
	{ "2:8", FLEXO_RANGE_SHAPE },
	{ "\xd9\xa2-\xd9\xa8", FLEXO_RANGE_SHAPE }, /* Arabic digits */
	{ "1-1000000000", FLEXO_RANGE_TOO_LONG },
	{ "1000000000-1000000000", FLEXO_RANGE_TOO_LONG },
	{ "1-4294967298", FLEXO_RANGE_TOO_LONG },            /* 2 modulo 2^32 */
	{ "1-18446744073709551618", FLEXO_RANGE_TOO_LONG },  /* 2 modulo 2^64 */
	{ "0000000002-8", FLEXO_RANGE_TOO_LONG },
};

static void check_accepted(void)
{
	for (size_t i = 0; i < LENGTH(accepted); i++) {
		struct flexo_range range = { 0, 0 };

		check(flexo_range_parse(accepted[i].value, FLEXO_NUMBER_MAX, &range) == FLEXO_RANGE_OK,
		      accepted[i].value, "should be accepted");
		check(range.min == accepted[i].min && range.max == accepted[i].max, accepted[i].value,
		      "is read as other numbers");
	}
}

static void check_refused(void)
{
	struct flexo_range range = { 7, 7 };

	for (size_t i = 0; i < LENGTH(refused); i++)
		check(flexo_range_parse(refused[i].value, FLEXO_NUMBER_MAX, &range) == refused[i].fault,
		      refused[i].value, "should be refused for its own reason");
	check(flexo_range_parse(NULL, FLEXO_NUMBER_MAX, &range) == FLEXO_RANGE_EMPTY, "NULL", "should be refused");
	check(range.min == 7 && range.max == 7, "refused values", "must leave the range as it was");
}

static void check_limit(void)
{
	struct flexo_range range;

	check(flexo_range_parse("2-64", 64, &range) == FLEXO_RANGE_OK, "2-64", "is within a limit of 64");
	check(flexo_range_parse("2-65", 64, &range) == FLEXO_RANGE_OVER_LIMIT, "2-65", "is above a limit of 64");
}

static void check_numbers(void)
{
	static const char *const bad[] = { "", "0", "-1", "+1", " 1", "1 ", "1x", "x", "1000000000", "4294967297" };
	uint32_t number = 0;

	check(flexo_number_parse("64", &number) && number == 64, "64", "is a number");
	for (size_t i = 0; i < LENGTH(bad); i++)
		check(!flexo_number_parse(bad[i], &number), bad[i], "is no number from 1 to 999999999");
	check(number == 64, "refused numbers", "must leave the number as it was");
}

static void check_messages(void)
{
	char line[512], tiny[8], huge[5000];

	flexo_range_explain(line, sizeof(line), "elastic", "8-2", 64, FLEXO_RANGE_REVERSED);
	check(strstr(line, "--elastic='8-2'") != NULL, line, "should name the option and the value");
	check(strstr(line, "from 1 to 64") != NULL, line, "should say what is allowed");
	flexo_range_explain(line, sizeof(line), "elastic", "\x1b[31m\n2-8\xff", 64, FLEXO_RANGE_SHAPE);
	for (const char *c = line; *c; c++)
		check(*c >= ' ' && *c <= '~', line, "should hold nothing that a terminal obeys");
	memset(huge, '9', sizeof(huge) - 1);
	huge[sizeof(huge) - 1] = '\0';
	flexo_range_explain(line, sizeof(line), "elastic", huge, 64, FLEXO_RANGE_SHAPE);
	check(strlen(line) < 300 && strstr(line, "...'") != NULL, line, "should shorten a long value");
	flexo_range_explain(tiny, sizeof(tiny), "elastic", NULL, 64, FLEXO_RANGE_EMPTY);
	check(strlen(tiny) == sizeof(tiny) - 1, tiny, "should fit the room given");
}

static void print_readings(int count, char *values[], uint32_t limit)
{
	for (int i = 0; i < count; i++) {
		struct flexo_range range;
		char line[512];
		enum flexo_range_fault fault = flexo_range_parse(values[i], limit, &range);

		if (fault == FLEXO_RANGE_OK)
			snprintf(line, sizeof(line), "%u-%u", range.min, range.max);
		else
			flexo_range_explain(line, sizeof(line), "elastic", values[i], limit, fault);
		puts(line);
	}
}

int main(int argc, char *argv[])
{
	uint32_t limit;

	if (argc > 1) {
		if (!flexo_number_parse(argv[1], &limit))
			return EXIT_FAILURE;
		print_readings(argc - 2, argv + 2, limit);
		return EXIT_SUCCESS;
	}
	check_accepted();
	check_refused();
	check_limit();
	check_numbers();
	check_messages();
	if (failures == 0)
		puts("range.c: all checks passed");
	return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
