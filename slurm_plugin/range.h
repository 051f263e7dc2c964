/*
 * Parses the ranges that --elastic, --elastic-opportunistic and --elastic-batch take, and explains why a value
 * is refused.
 *
 * Separate from the plugin so that the parser can be tested without Slurm.
 */
#ifndef FLEXO_RANGE_H
#define FLEXO_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers of more than nine digits are refused, as everywhere in flexo: nothing here can overflow. */
#define FLEXO_NUMBER_MAX 999999999u

/* A range MIN-MAX: both numbers are at least 1, and both belong to the range. */
struct flexo_range {
	uint32_t min;
	uint32_t max;
};

enum flexo_range_fault {
	FLEXO_RANGE_OK,
	FLEXO_RANGE_EMPTY,
	FLEXO_RANGE_SHAPE,    /* not two whole numbers with a hyphen between */
	FLEXO_RANGE_TOO_LONG, /* a number of more than nine digits */
	FLEXO_RANGE_ZERO,
	FLEXO_RANGE_REVERSED,
	FLEXO_RANGE_OVER_LIMIT,
};

/* Reads a number from 1 to FLEXO_NUMBER_MAX. False for anything else: 0, a sign, a space, further text. */
bool flexo_number_parse(const char *text, uint32_t *number);

/* `limit` is the largest MAX that the site allows. `range` is written only when the result is FLEXO_RANGE_OK. */
enum flexo_range_fault flexo_range_parse(const char *text, uint32_t limit, struct flexo_range *range);

/* The word behind a range with which an opportunistic job first tries idle GPUs: `2-8,auto`. */
#define FLEXO_AUTO ",auto"

/* The same for MIN-MAX or MIN-MAX,auto. `automatic` is written with `range`. */
enum flexo_range_fault flexo_range_parse_auto(const char *text, uint32_t limit, struct flexo_range *range,
					      bool *automatic);

/*
 * Writes one line for the user: the option, the value, what is wrong with it and what is allowed. The value
 * is shortened, with `?` for characters that a terminal should not see. `option` is a name such as "elastic".
 */
void flexo_range_explain(char *line, size_t size, const char *option, const char *value, uint32_t limit,
			 enum flexo_range_fault fault);

#endif
