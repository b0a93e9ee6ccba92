// Executes a program in the background of a terminal that stops those who write there (`stty tostop`), and prints what
// became of it, and whether it has written a line of ours. Ends with 77 where there is no terminal to be had.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { SKIPPED = 77 };

static int session(char **command) {
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (setsid() < 0 || terminal < 0 || grantpt(terminal) || unlockpt(terminal)) return SKIPPED;
    // Becomes the terminal of this session, with this process in its foreground.
    int other = open(ptsname(terminal), O_RDWR);
    struct termios modes;
    if (other < 0 || tcgetattr(other, &modes)) return SKIPPED;
    modes.c_lflag |= TOSTOP;
    if (tcsetattr(other, TCSANOW, &modes) || tcgetpgrp(other) != getpid()) return SKIPPED;
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        dup2(other, 2);
        execv(command[0], command);
        _exit(SKIPPED);
    }
    int status;
    if (waitpid(child, &status, WUNTRACED) != child) return 1;
    if (WIFSTOPPED(status)) {
        printf("stopped by %d\n", WSTOPSIG(status));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    } else {
        printf("ended with %d\n", WEXITSTATUS(status));
    }
    char text[4096] = "";
    fcntl(terminal, F_SETFL, O_NONBLOCK);
    ssize_t length = read(terminal, text, sizeof text - 1);
    printf("%s\n", length > 0 && strstr(text, "palimpsest: ") ? "told" : "not told");
    return 0;
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    // A leader of a group cannot begin a session.
    pid_t child = fork();
    if (child == 0) exit(session(arguments + 1));
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
