// Stands behind the preload object: a descriptor that the kernel does not know.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>

enum { OWN = 1000000 };

int poll(struct pollfd *fds, nfds_t count, int millis) {
  int (*real)(struct pollfd *, nfds_t, int) = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
  if (count != 1 || fds->fd != OWN) return real(fds, count, millis);
  fds->revents = POLLIN;
  return 1;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int millis) {
  int (*real)(int, struct epoll_event *, int, int) =
      (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
  return fd == OWN ? 1 : real(fd, events, most, millis);
}
