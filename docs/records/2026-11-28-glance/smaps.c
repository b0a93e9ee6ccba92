#define _GNU_SOURCE
#include <sys/mman.h>
#include <stdio.h>
#include <unistd.h>
#include <fcntl.h>
#include <time.h>
#include <string.h>
#include <stdlib.h>
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e3+t.tv_nsec/1e6;}
static double look(size_t chunk){ static char b[1<<16]; double a=now(); int fd=open("/proc/thread-self/smaps",O_RDONLY); off_t o=0; ssize_t n; while((n=pread(fd,b,chunk,o))>0)o+=n; close(fd); return now()-a;}
int main(){ size_t n=512ul<<20; 
 for(int extra=0;extra<8;extra++){ 
  char*m=mmap((void*)0x100000000000,n,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED,-1,0); madvise(m,n,MADV_NOHUGEPAGE);
  if(!extra) for(size_t i=0;i<n;i+=4096) m[i]=1;
  if(extra) for(int k=0;k<1;k++) mmap((void*)(0x80000000000+extra*0x10000),4096,(extra&1)?PROT_READ:PROT_NONE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED,-1,0);
  for(size_t i=0;i<n;i+=4096) m[i]=1;
  double x=look(65536),y=look(2048),x2=look(65536),y2=look(2048); printf("%d: 64K %.2f %.2f  2K %.2f %.2f\n",extra,x,x2,y,y2);
 } return 0;}
