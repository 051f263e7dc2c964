/* Strict parser of MIN-MAX; range.h describes it. */
#include "range.h"

#include <stdio.h>
#include <string.h>

#define DIGITS_MAX 9
#define SHOWN_MAX 40 /* characters of a value that a message repeats */

/* Reads the digits at `text`; returns a pointer behind them. Ten or more digits leave `number` too large. */
static const char *read_digits(const char *text, uint64_t *number)
{
	const char *end = text;

	*number = 0;
	for (; *end >= '0' && *end <= '9'; end++)
		if (end - text <= DIGITS_MAX)
			*number = *number * 10 + (uint64_t)(*end - '0');
	if (end - text > DIGITS_MAX)
		*number = (uint64_t)FLEXO_NUMBER_MAX + 1;
	return end;
}

bool flexo_number_parse(const char *text, uint32_t *number)
{
	uint64_t value;
	const char *end = read_digits(text, &value);

	if (end == text || *end != '\0' || value == 0 || value > FLEXO_NUMBER_MAX)
		return false;
	*number = (uint32_t)value;
	return true;
}

/* Reads the range between `text` and `stop`. */
static enum flexo_range_fault parse_until(const char *stop, const char *text, uint32_t limit,
					  struct flexo_range *range)
{
	uint64_t min, max;
	const char *hyphen, *second, *end;

	if (!text || text == stop)
		return FLEXO_RANGE_EMPTY;
	hyphen = read_digits(text, &min);
	if (hyphen == text || *hyphen != '-')
		return FLEXO_RANGE_SHAPE;
	second = hyphen + 1;
	end = read_digits(second, &max);
	if (end == second || end != stop)
		return FLEXO_RANGE_SHAPE;
	if (min > FLEXO_NUMBER_MAX || max > FLEXO_NUMBER_MAX)
		return FLEXO_RANGE_TOO_LONG;
	if (min == 0)
		return FLEXO_RANGE_ZERO;
	if (max < min)
		return FLEXO_RANGE_REVERSED;
	if (max > limit)
		return FLEXO_RANGE_OVER_LIMIT;
	range->min = (uint32_t)min;
	range->max = (uint32_t)max;
	return FLEXO_RANGE_OK;
}

enum flexo_range_fault flexo_range_parse(const char *text, uint32_t limit, struct flexo_range *range)
{
	return parse_until(text ? text + strlen(text) : NULL, text, limit, range);
}

enum flexo_range_fault flexo_range_parse_auto(const char *text, uint32_t limit, struct flexo_range *range,
					      bool *automatic)
{
	const char *comma = text ? strchr(text, ',') : NULL;
	bool has_word = comma && strcmp(comma, FLEXO_AUTO) == 0;
	enum flexo_range_fault fault;

	fault = has_word ? parse_until(comma, text, limit, range) : flexo_range_parse(text, limit, range);
	if (fault == FLEXO_RANGE_OK)
		*automatic = has_word;
	return fault;
}

static const char *what_is_wrong(enum flexo_range_fault fault)
{
	switch (fault) {
	case FLEXO_RANGE_EMPTY:
		return "the value is missing";
	case FLEXO_RANGE_TOO_LONG:
		return "a number has more than nine digits";
	case FLEXO_RANGE_ZERO:
		return "the minimum is 1";
	case FLEXO_RANGE_REVERSED:
		return "the maximum is below the minimum";
	case FLEXO_RANGE_OVER_LIMIT:
		return "the maximum is above this site's limit";
	case FLEXO_RANGE_SHAPE:
	case FLEXO_RANGE_OK:
		break;
	}
	return "this is not a range MIN-MAX";
}

/*
 * Copies up to SHOWN_MAX characters of `value`, with `?` for unprintable ones and "..." if there are more.
 * `shown` holds SHOWN_MAX + 4 characters.
 */
static void make_printable(char *shown, const char *value)
{
	size_t i;

	for (i = 0; i < SHOWN_MAX && value[i] != '\0'; i++)
		shown[i] = value[i] >= ' ' && value[i] <= '~' ? value[i] : '?';
	memcpy(shown + i, value[i] == '\0' ? "" : "...", value[i] == '\0' ? 1 : 4);
}

void flexo_range_explain(char *line, size_t size, const char *option, const char *value, uint32_t limit,
			 enum flexo_range_fault fault)
{
	char shown[SHOWN_MAX + 4];

	make_printable(shown, value ? value : "");
	snprintf(line, size,
		 "--%s='%s': %s; allowed is MIN-MAX, two whole numbers from 1 to %u, MIN not above MAX, such as 2-8",
		 option, shown, what_is_wrong(fault), limit);
}
