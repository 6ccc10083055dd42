/* Has the plugin of count.c write down what it has counted so far. */
int main(void) {
  __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00, 0x4c, 0x4e, 0x54, 0x54");
  return 0;
}
