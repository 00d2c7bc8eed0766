/* Push samples NUMBER.. of which each value is its number: pusher NAME COUNT SIDE. A line before each push. */
#include <mpips.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int code) {
  if (code == MPIPS_OK) return;
  fprintf(stderr, "%s\n", mpips_message());
  exit(code);
}

int main(int argc, char **argv) {
  const int64_t count = argc > 2 ? atoll(argv[2]) : 0, side = argc > 3 ? atoll(argv[3]) : 1;
  const int64_t shape[2] = {side, side}, strides[2] = {1, side};
  double *x = malloc((size_t)(side * side) * sizeof *x);
  mpips_producer *p;
  if (argc < 4 || x == NULL) return 99;
  check(mpips_open(&p, argv[1], 0, 60.0));
  check(mpips_declare(p, "n", MPIPS_INT64, 0, NULL, NULL));
  check(mpips_declare(p, "x", MPIPS_FLOAT64, 2, shape, strides));
  for (int64_t n = mpips_produced(p); n < count; ++n) {
    const void *arrays[2] = {&n, x};
    printf("%lld\n", (long long)n);
    fflush(stdout);
    for (int64_t i = 0; i < side * side; ++i) x[i] = (double)n;
    check(mpips_push(p, arrays));
  }
  check(mpips_close(p));
  return 0;
}
