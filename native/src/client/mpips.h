/* mpips.h: push samples of a simulation in C, C++ or Fortran into a stream of mpips.
 *
 * A worker of the job on this node serves a queue in shared memory (StreamTable.serve in Python); a program
 * that is no rank of the job copies samples into it. No MPI, no Python and no threads are used here.
 *
 *     mpips_producer *p;
 *     int64_t shape[2] = {64, 64};
 *     if (mpips_open(&p, "heat", 0, 60.0)) die(mpips_message());
 *     if (mpips_declare(p, "x", MPIPS_FLOAT64, 2, shape, NULL)) die(mpips_message());
 *     for (int64_t n = mpips_produced(p); n < steps; ++n) {
 *       const void *arrays[1] = {field};
 *       ...
 *       if (mpips_push(p, arrays)) die(mpips_message());
 *     }
 *     if (mpips_close(p)) die(mpips_message());
 *
 * Functions return MPIPS_OK or another code below; mpips_message() is then a sentence about it. Every wait
 * ends after the timeout of mpips_open. A producer is not thread-safe; different ones may be used at once. A
 * forked child can only detach the producers of its parent.
 */
#ifndef MPIPS_H
#define MPIPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(MPIPS_API)
#elif defined(__GNUC__)
#define MPIPS_API __attribute__((visibility("default")))
#else
#define MPIPS_API
#endif

/* Codes. */
enum {
  MPIPS_OK = 0,
  MPIPS_FULL = 1,     /* mpips_try_push: there is no room in the queue now */
  MPIPS_STALLED = 2,  /* a wait has exceeded the timeout; the message names the worker */
  MPIPS_INVALID = 3,  /* the sample contains NaN or infinity, or a number beyond float32 */
  MPIPS_USAGE = 4,    /* an argument or the order of the calls is wrong */
  MPIPS_REPLACED = 5, /* the job has gone back to fewer samples: detach, open again, and go on there */
  MPIPS_SYSTEM = 6    /* the operating system refuses something */
};

/* Types of the values of an array. A field of float32 also takes arrays of float64. */
enum {
  MPIPS_FLOAT32 = 1,
  MPIPS_FLOAT64 = 2,
  MPIPS_INT8 = 3,
  MPIPS_INT16 = 4,
  MPIPS_INT32 = 5,
  MPIPS_INT64 = 6,
  MPIPS_UINT8 = 7,
  MPIPS_UINT16 = 8,
  MPIPS_UINT32 = 9,
  MPIPS_UINT64 = 10,
  MPIPS_BOOL = 11 /* one byte, 0 or 1 */
};

typedef struct mpips_producer mpips_producer;

/* Become producer `number` of the stream that a worker of this node serves under `name`. Waits for the worker.
 * name: that of StreamTable.serve; or the directory of a run of `mpips run`, a path with a '/', whose worker
 * serves under no name of its own; or NULL or "" in a program that `mpips run` has started ([producers]), whose
 * producers are then counted from 0: `number` is 0 if it has one, or the rank in an MPI program.
 * timeout_s: longest wait of this and of all later calls, in seconds. */
MPIPS_API int mpips_open(mpips_producer **producer, const char *name, int number, double timeout_s);

/* Say how the application stores a field of the stream. Call it once for each field, in the order in which
 * mpips_push gets the arrays. The shape must be that of the stream. strides: for each dimension the number of
 * values from one index to the next; NULL: the array is contiguous, the last index fastest. */
MPIPS_API int mpips_declare(mpips_producer *producer, const char *field, int type, int n_dims,
                            const int64_t *shape, const int64_t *strides);

/* Number of samples pushed so far, over all launches of job and program: the number of the next one. A program
 * that starts again goes on there. */
MPIPS_API int64_t mpips_produced(const mpips_producer *producer);

/* Copy a sample into the queue, and wait while it has no room. arrays: for each declared field the address of
 * its first value; free again at return. The sample then survives the end of this program and of the worker,
 * but not of the node; see mpips_flush. With another code than MPIPS_OK nothing has been pushed. */
MPIPS_API int mpips_push(mpips_producer *producer, const void *const *arrays);

/* Like mpips_push, but return MPIPS_FULL at once if there is no room. */
MPIPS_API int mpips_try_push(mpips_producer *producer, const void *const *arrays);

/* Wait until servers hold all samples that were pushed. They then survive what the job survives. */
MPIPS_API int mpips_flush(mpips_producer *producer);

/* Copy the newest values that the worker publishes: the first n values of the dense table that it names in
 * `steer`. version: a number that grows with each publication; 0: nothing was published yet, and the values are
 * unchanged. Never waits for a new publication. */
MPIPS_API int mpips_steer(mpips_producer *producer, float *values, int64_t n, int64_t *version);

/* End the producer: no further samples come. Waits until servers hold all of them and the end. Whatever it
 * returns, the handle is gone afterwards, and opening the producer again continues. */
MPIPS_API int mpips_close(mpips_producer *producer);

/* Give up the handle without ending the producer: another program may go on. Waits for nothing. */
MPIPS_API int mpips_detach(mpips_producer *producer);

/* Sentence about the last error of this thread; "" if there was none. Valid until the next call. */
MPIPS_API const char *mpips_message(void);

#ifdef __cplusplus
}
#endif

#endif
