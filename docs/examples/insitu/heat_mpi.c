/* Solve the heat equation on the ranks of an MPI program; each rank pushes its rows into a stream of mpips.
 *
 *     mpicc -O2 heat_mpi.c -o heat_mpi $(mpips client)
 *     mpirun -n 2 ./heat_mpi 8 heat : -n 4 python heat_mpi.py 2 heat      (8 simulations, one mpirun)
 *
 * Without a name, as in `mpirun -n 2 ./heat_mpi 8`, it is a program of [producers] of `mpips run`.
 */
#include <mpi.h>
#include <mpips.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 12, CELLS = 24, STEPS = 40 }; /* rows of a rank, besides a halo row above and below */

static double before[ROWS + 2][CELLS], after[ROWS + 2][CELLS];

static void check(int code) {
  if (code == MPIPS_OK) return;
  fprintf(stderr, "heat_mpi: %s\n", mpips_message());
  MPI_Abort(MPI_COMM_WORLD, code); /* ends the trainers as well, if they are in the same mpirun */
}

/* A number from -1 to 1 (splitmix64, Steele et al. 2014). */
static double drawn(uint64_t *state) {
  uint64_t x = *state += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (double)((x ^ (x >> 31)) >> 11) / (double)(1ull << 52) - 1.0;
}

/* The field is periodic: the rank above the first one is the last one. */
static void step(MPI_Comm solver, int rank, int ranks, double conductivity) {
  const int above = (rank + ranks - 1) % ranks, below = (rank + 1) % ranks;
  MPI_Sendrecv(before[1], CELLS, MPI_DOUBLE, above, 0, before[ROWS + 1], CELLS, MPI_DOUBLE, below, 0, solver,
               MPI_STATUS_IGNORE);
  MPI_Sendrecv(before[ROWS], CELLS, MPI_DOUBLE, below, 1, before[0], CELLS, MPI_DOUBLE, above, 1, solver,
               MPI_STATUS_IGNORE);
  for (int i = 1; i <= ROWS; ++i)
    for (int j = 0; j < CELLS; ++j) {
      double around = before[i - 1][j] + before[i + 1][j] + before[i][(j + CELLS - 1) % CELLS] +
                      before[i][(j + 1) % CELLS];
      after[i][j] = before[i][j] + conductivity * (around - 4 * before[i][j]);
    }
}

int main(int argc, char **argv) {
  const int runs = argc > 1 ? atoi(argv[1]) : 8;
  const int64_t with_halo[2] = {ROWS + 2, CELLS}, inside[2] = {ROWS, CELLS};
  int rank, ranks, *program, is_there;
  MPI_Comm solver;
  mpips_producer *p;

  /* The programs of one mpirun share MPI_COMM_WORLD: take the ranks of this program. */
  MPI_Init(&argc, &argv);
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &program, &is_there);
  MPI_Comm_split(MPI_COMM_WORLD, is_there ? *program : 0, 0, &solver);
  MPI_Comm_rank(solver, &rank);
  MPI_Comm_size(solver, &ranks);

  check(mpips_open(&p, argc > 2 ? argv[2] : NULL, rank, 120.0));
  check(mpips_declare(p, "before", MPIPS_FLOAT64, 2, with_halo, NULL));
  check(mpips_declare(p, "after", MPIPS_FLOAT64, 2, inside, NULL));
  check(mpips_declare(p, "conductivity", MPIPS_FLOAT64, 0, NULL, NULL));

  /* After a restart, go on where the last rank has ended; the others do not push samples again. */
  int64_t mine = mpips_produced(p), first;
  MPI_Allreduce(&mine, &first, 1, MPI_INT64_T, MPI_MIN, solver);
  for (int run = (int)(first / STEPS); run < runs; ++run) {
    uint64_t state = (uint64_t)run, rows = (uint64_t)rank << 32 | (uint64_t)run;
    double conductivity = 0.15 + 0.1 * drawn(&state);
    for (int i = 1; i <= ROWS; ++i)
      for (int j = 0; j < CELLS; ++j) before[i][j] = drawn(&rows);
    for (int s = 0; s < STEPS; ++s) {
      step(solver, rank, ranks, conductivity);
      const void *arrays[3] = {before, after[1], &conductivity};
      if ((int64_t)run * STEPS + s >= mine) check(mpips_push(p, arrays));
      memcpy(before, after, sizeof before);
    }
  }
  printf("heat_mpi: rank %d of %d has pushed %lld samples\n", rank, ranks, (long long)mpips_produced(p));
  fflush(stdout);
  check(mpips_close(p));
  MPI_Comm_free(&solver);
  MPI_Finalize();
  return 0;
}
