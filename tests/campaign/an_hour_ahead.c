// Loaded before the C library (LD_PRELOAD): the time of day is an hour ahead, for whoever reads it and whoever waits for it.
// Monotonic clocks and the times of files stay as they are. (libfaketime fails Python's time.sleep, whose clock it moves.)
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <sys/time.h>
#include <time.h>

enum { kAhead = 3600 };  // seconds

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*next)(clockid_t, struct timespec*);
  if (!next) next = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int rc = next(clock, now);
  if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += kAhead;
  return rc;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  struct timespec found;
  (void)zone;
  const int rc = clock_gettime(CLOCK_REALTIME, &found);
  if (rc == 0) *now = (struct timeval){found.tv_sec, found.tv_nsec / 1000};
  return rc;
}

time_t time(time_t* out) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

int sem_timedwait(sem_t* restrict sem, const struct timespec* restrict until) {
  static int (*next)(sem_t*, const struct timespec*);
  if (!next) next = (int (*)(sem_t*, const struct timespec*))dlsym(RTLD_NEXT, "sem_timedwait");
  const struct timespec earlier = {until->tv_sec - kAhead, until->tv_nsec};
  return next(sem, &earlier);
}
