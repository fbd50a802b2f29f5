import sys; sys.path.insert(0,'tests/report')
from selenium import webdriver
from selenium.webdriver.common.by import By
o=webdriver.ChromeOptions()
for a in ("--headless=new","--no-sandbox","--disable-dev-shm-usage","--hide-scrollbars"): o.add_argument(a)
o.binary_location="/usr/bin/chromium"
d=webdriver.Chrome(options=o, service=webdriver.ChromeService("/usr/bin/chromedriver"))
page,out,w,h,dark,opened=sys.argv[1:7]
d.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",dict(width=int(w),height=int(h),deviceScaleFactor=1,mobile=False))
d.execute_cdp_cmd("Emulation.setEmulatedMedia",{"features":[{"name":"prefers-color-scheme","value":"dark" if dark=="1" else "light"}]})
d.get("file://"+page)
for b in d.find_elements(By.CSS_SELECTOR,".summary .host button")[:int(opened)]: b.click()
d.save_screenshot(out); print(d.execute_script("return [document.documentElement.scrollWidth, innerWidth, document.documentElement.scrollHeight]"), d.get_log("browser")); d.quit()
