/* Solve the heat equation from random fields, and push each step into a stream of mpips.
 *
 *     cc -O2 heat.c -o heat $(mpips client)
 *     ./heat 0 8        (producer 0, 8 simulations; heat.py must run on this node)
 */
#include <mpips.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 24, SIDE = CELLS + 2, STEPS = 40 }; /* an array has a halo of one cell */

static double before[SIDE][SIDE], after[SIDE][SIDE];

static void check(int code) {
  if (code == MPIPS_OK) return;
  fprintf(stderr, "heat: %s\n", mpips_message());
  exit(code);
}

/* A number from -1 to 1 (splitmix64, Steele et al. 2014). */
static double drawn(uint64_t *state) {
  uint64_t x = *state += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (double)((x ^ (x >> 31)) >> 11) / (double)(1ull << 52) - 1.0;
}

/* The field is periodic. */
static void fill_halo(double u[SIDE][SIDE]) {
  for (int i = 1; i <= CELLS; ++i) {
    u[i][0] = u[i][CELLS];
    u[i][CELLS + 1] = u[i][1];
  }
  memcpy(u[0], u[CELLS], sizeof u[0]);
  memcpy(u[CELLS + 1], u[1], sizeof u[0]);
}

static void step(double conductivity) {
  fill_halo(before);
  for (int i = 1; i <= CELLS; ++i)
    for (int j = 1; j <= CELLS; ++j) {
      double around = before[i - 1][j] + before[i + 1][j] + before[i][j - 1] + before[i][j + 1];
      after[i][j] = before[i][j] + conductivity * (around - 4 * before[i][j]);
    }
}

int main(int argc, char **argv) {
  const int number = argc > 1 ? atoi(argv[1]) : 0, runs = argc > 2 ? atoi(argv[2]) : 8;
  const int64_t shape[2] = {CELLS, CELLS}, strides[2] = {SIDE, 1};
  float stop = 0;
  int64_t version;
  mpips_producer *p;

  check(mpips_open(&p, "heat", number, 120.0));
  check(mpips_declare(p, "before", MPIPS_FLOAT64, 2, shape, strides));
  check(mpips_declare(p, "after", MPIPS_FLOAT64, 2, shape, strides));
  check(mpips_declare(p, "conductivity", MPIPS_FLOAT64, 0, NULL, NULL));

  const int64_t first = mpips_produced(p); /* after a restart, go on where it ended */
  for (int run = (int)(first / STEPS); run < runs && stop == 0; ++run) {
    uint64_t state = (uint64_t)number << 32 | (uint64_t)run;
    double conductivity = 0.15 + 0.1 * drawn(&state);
    for (int i = 1; i <= CELLS; ++i)
      for (int j = 1; j <= CELLS; ++j) before[i][j] = drawn(&state);
    for (int s = 0; s < STEPS; ++s) {
      step(conductivity);
      const void *arrays[3] = {&before[1][1], &after[1][1], &conductivity};
      if ((int64_t)run * STEPS + s >= first) check(mpips_push(p, arrays));
      memcpy(before, after, sizeof before);
    }
    check(mpips_steer(p, &stop, 1, &version)); /* the trainer ends the simulations */
  }
  printf("heat: producer %d has pushed %lld samples\n", number, (long long)mpips_produced(p));
  check(mpips_close(p));
  return 0;
}
